"""Hindsight experience replay: steps are given goals that were achieved later in their episode.

Andrychowicz et al., 2017, with the strategy `future`. Environments are goal environments: their
observations are a Dict of `observation`, `achieved_goal` and `desired_goal`, and they have
`compute_reward(achieved, desired, info)` for many goals at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, MultiBinary
from numpy.typing import NDArray
from torch import Tensor

from gmi_drl.roles.envs.errors import EnvError, EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.envs.spaces import leaves, width_of
from gmi_drl.roles.policies.structure import structured_space

from .batch import Batch

Rewards = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
_GOALS: Final = ("achieved_goal", "desired_goal")


class Hindsight:
    """Gives a share of a batch's steps another goal, and the reward for that."""

    def __init__(
        self, env: VecEnv, share: float, reward_scale: float, generator: torch.Generator
    ) -> None:
        """`env`: an environment like those that are sampled, whose `compute_reward` is called.

        EnvSpecError if it has no goals.
        """
        self._env, self._share, self._scale = env, share, reward_scale
        self._generator = generator
        self._achieved, self._desired, self._goal = _goals(env)

    def relabel(self, batch: Batch) -> None:
        """Changes the goals of some steps, in place, to one achieved later in their episode.

        Only later steps of this batch are known.
        """
        ended, achieved = batch["done"].bool(), batch["next_observation"][..., self._achieved]
        steps = torch.arange(len(ended), device=ended.device)[:, None].expand_as(ended)
        # The last step of each step's episode, found from the end backwards.
        last = torch.where(ended, steps, len(ended) - 1).flip(0).cummin(0).values.flip(0)
        draws = torch.rand(2, *ended.shape, generator=self._generator, device=ended.device)
        later = steps + (draws[0] * (last - steps + 1)).long()
        later = torch.minimum(later, last)  # where a draw is rounded up to 1
        goals = achieved.gather(0, later[..., None].expand_as(achieved))
        chosen = draws[1] < self._share
        if not bool(chosen.any()):  # as of a batch of one step
            return
        batch["raw_observation"][..., self._desired][chosen] = goals[chosen]
        batch["reward"][chosen] = self._scale * self._rewards(achieved[chosen], goals[chosen])

    def carry(self, minibatch: Batch) -> None:
        """Gives the next observations of a minibatch the goals of their steps, in place."""
        goals = minibatch["raw_observation"][..., self._desired]
        minibatch["next_observation"][..., self._desired] = goals

    def _rewards(self, achieved: Tensor, desired: Tensor) -> Tensor:
        """Returns the rewards [B] of goals [B, G]."""
        goals = (self._structured(achieved), self._structured(desired))
        rewards = np.asarray(self._env.compute_reward(*goals), dtype=np.float32)  # type: ignore[attr-defined]
        if rewards.shape != (len(achieved),):
            raise EnvError(
                f"compute_reward gave rewards of shape {list(rewards.shape)} for {len(achieved)} "
                f"goals; must be [{len(achieved)}]. Compute along the last axis."
            )
        if not np.isfinite(rewards).all():
            raise EnvError(
                "compute_reward gave a reward that is NaN or infinite. Look for a division by zero "
                "in it, or for goals that are not finite."
            )
        return torch.from_numpy(rewards).to(achieved.device)

    def _structured(self, goals: Tensor) -> NDArray[Any]:
        """Returns goals [B, G] in the environment's shape and type: [B, *shape]."""
        array = goals.cpu().numpy().reshape(len(goals), *self._goal.shape)
        return array.astype(self._goal.dtype)


def _goals(env: VecEnv) -> tuple[slice, slice, Box | MultiBinary]:
    """Returns the columns of achieved and desired goals in an observation, and a goal's space."""
    space = structured_space(env)
    rule = "algorithm.hindsight is for goal environments"
    places: dict[Any, tuple[slice, Any]] = {}
    end = 0
    if isinstance(space, Dict):
        for path, leaf in leaves(space):
            begin, end = end, end + width_of(leaf)
            places[path[0] if len(path) == 1 else path] = slice(begin, end), leaf
    missing = [name for name in _GOALS if name not in places]
    if missing:
        raise EnvSpecError(
            f"{rule}, whose observations are a Dict with {' and '.join(_GOALS)}; this one's "
            f"{space} lacks {' and '.join(missing)}. Leave hindsight out, or add them."
        )
    (achieved, goal_space), (desired, desired_space) = (places[name] for name in _GOALS)
    if goal_space.shape != desired_space.shape or not isinstance(goal_space, Box | MultiBinary):
        raise EnvSpecError(
            f"{rule}, whose goals are Boxes or MultiBinarys of one shape; these are "
            f"{goal_space} and {desired_space}. Make them alike."
        )
    if not callable(getattr(env, "compute_reward", None)):
        raise EnvSpecError(
            f"{rule}, which have compute_reward(achieved_goal, desired_goal, info); this "
            "one has none that can be called here. Add it, and leave out "
            "env.options.vectorization: async."
        )
    return achieved, desired, goal_space
