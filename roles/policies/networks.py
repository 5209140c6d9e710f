"""Makes the networks of a config, and the policies that act by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gmi_drl.placement import AlgorithmConfig, hidden_sizes
from gmi_drl.roles.envs.protocol import VecEnv

from .actor_critic import ActorCritic, ActorCriticPolicy, distribution_for, observation_width
from .convolutions import ConvolutionalTrunk, is_convolutional
from .recurrent import RecurrentActorCritic, RecurrentPolicy
from .structure import structured_space
from .trunk import Trunk


def actor_critic_of(
    settings: AlgorithmConfig, env: VecEnv, generator: torch.Generator | None = None
) -> ActorCritic:
    """The network of a config for the spaces of `env`, where no role makes another."""
    spaces = observation_width(env.observation_space), distribution_for(env.action_space)
    options: dict[str, Any] = {
        "activation": settings.activation,
        "init_log_std": getattr(settings, "init_log_std", 0.0),
        "generator": generator,
        "precision": settings.precision,
        "trunk": trunk_of(settings, env),
    }
    hidden = hidden_sizes(settings.network)
    recurrent = getattr(settings, "recurrent", None)
    if recurrent is None:
        return ActorCritic(*spaces, hidden, **options)
    return RecurrentActorCritic(*spaces, hidden, recurrent=recurrent, **options)


def trunk_of(settings: AlgorithmConfig, env: VecEnv) -> Trunk | ConvolutionalTrunk:
    """The hidden layers of a config's network, for the observations of `env`."""
    if not is_convolutional(settings.network):
        width, hidden = observation_width(env.observation_space), hidden_sizes(settings.network)
        return Trunk(width, hidden, settings.activation, settings.precision)
    in_bytes = env.observation_space.dtype == np.uint8 and not settings.normalize_observation
    space, name = structured_space(env), str(settings.network)
    return ConvolutionalTrunk(name, space, in_bytes=in_bytes, precision=settings.precision)


def policy_of(network: Any) -> ActorCriticPolicy:
    """The policy that acts by an actor-critic network, of a config or of a role."""
    if isinstance(network, RecurrentActorCritic):
        return RecurrentPolicy(network)
    return ActorCriticPolicy(network)
