"""Makes the networks of a config, and the policies that act by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gmi_drl.placement import AlgorithmConfig, hidden_sizes, is_own_network
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.envs.spaces import flat_space

from .actor_critic import ActorCritic, ActorCriticPolicy, distribution_for, observation_width
from .convolutions import ConvolutionalTrunk, is_convolutional
from .recurrent import RecurrentActorCritic, RecurrentPolicy
from .structure import structured_space
from .trunk import HiddenLayers, OwnTrunk, SeparateTrunks, dense_trunk


def actor_critic_of(
    settings: AlgorithmConfig, env: VecEnv, generator: torch.Generator | None = None
) -> ActorCritic:
    """Returns the network of a config for the spaces of `env`, where no role makes another."""
    spaces = observation_width(env.observation_space), distribution_for(env.action_space)
    trunk = trunk_of(settings, env, generator)
    if not getattr(settings, "share_layers", True):
        trunk = SeparateTrunks(trunk, trunk_of(settings, env, generator))
    options: dict[str, Any] = {
        "activation": settings.activation,
        "init_log_std": getattr(settings, "init_log_std", 0.0),
        "generator": generator,
        "trunk": trunk,
    }
    hidden = hidden_sizes(settings.network)
    recurrent = getattr(settings, "recurrent", None)
    if recurrent is None:
        return ActorCritic(*spaces, hidden, **options)
    return RecurrentActorCritic(*spaces, hidden, recurrent=recurrent, **options)


def trunk_of(
    settings: AlgorithmConfig, env: VecEnv, generator: torch.Generator | None
) -> HiddenLayers:
    """Returns the hidden layers of a config's network, for the observations of `env`."""
    name, precision = settings.network, settings.precision
    space = flat_space(structured_space(env))
    if is_own_network(name):
        return OwnTrunk(str(name), structured_space(env), generator, precision)
    if is_convolutional(name):
        in_bytes = space.dtype == np.uint8 and space.high.max() > 1  # not true and false
        return ConvolutionalTrunk(
            str(name), structured_space(env), precision=precision, layer_norm=settings.layer_norm,
            in_bytes=in_bytes and not settings.normalize_observation,
        )  # fmt: skip
    return dense_trunk(settings, observation_width(space))


def described_layers(settings: AlgorithmConfig) -> dict[str, Any]:
    """Returns what a network's parameters do not say of its hidden layers."""
    sizes = settings.network
    name = str(sizes) if is_own_network(sizes) else list(hidden_sizes(sizes))
    return {"network": name, "activation": settings.activation}


def policy_of(network: Any) -> ActorCriticPolicy:
    """Returns the policy that acts by an actor-critic network, of a config or of a role."""
    if isinstance(network, RecurrentActorCritic):
        return RecurrentPolicy(network)
    return ActorCriticPolicy(network)
