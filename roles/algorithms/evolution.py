"""Learning from the returns of perturbed policies: what ES and ARS share.

The policy is moved along the directions in which it was perturbed, each times a weight that follows
from the returns of all. Nothing is differentiated.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from gmi_drl.placement import EvolutionConfig
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.policies.actor_critic import distribution_for
from gmi_drl.roles.policies.networks import trunk_of
from gmi_drl.roles.policies.perturbed import GreedyNetwork, GreedyPolicy
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses


class Evolution(Algorithm):
    """Weighs directions by the returns of both ways; optimizer `population` does the rest."""

    # Statistics of the returns that are learned from, and the norm of the gradient.
    stats = ("score_mean", "score_std", "score_max", "gradient_norm")
    bootstrap = ()
    network_class = GreedyNetwork
    network_fault = "perturbed policies act by what they see now, without memory or noise"
    settings: EvolutionConfig

    @classmethod
    def make_network(
        cls, settings: Any, env: VecEnv, generator: torch.Generator | None
    ) -> GreedyNetwork:
        """Returns a network that acts by the mode of a distribution over the actions of `env`."""
        trunk = trunk_of(settings, env, generator)
        return GreedyNetwork(trunk, distribution_for(env.action_space), settings, generator)

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> GreedyPolicy:
        return GreedyPolicy(network)

    @abstractmethod
    def weights(self, scores: Tensor) -> Tensor:
        """Returns the weight [K] of each direction, by the `scores` [K, 2] of both its ways."""

    def losses(self, batch: Batch) -> Losses:
        raise RoleError(
            f"{type(self).__name__} has no loss, as it learns from returns alone. Use optimizer "
            "population."
        )


def centred_ranks(scores: Tensor) -> Tensor:
    """Returns the ranks of `scores`, in its shape, from -0.5 for the least to 0.5 for the greatest.

    Equal scores share the mean of their ranks, so that the order of evaluation does not matter.
    """
    flat = scores.flatten()
    ordered = flat.sort().values
    below = torch.searchsorted(ordered, flat)
    not_above = torch.searchsorted(ordered, flat, right=True)
    ranks = (below + not_above - 1).double() / 2
    return (ranks / max(len(flat) - 1, 1) - 0.5).view_as(scores)
