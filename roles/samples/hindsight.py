"""Hindsight experience replay: steps are learned from as if a goal reached later had been theirs.

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
    """Gives a share of a batch's steps another goal, and the reward that it would have brought."""

    def __init__(
        self, env: VecEnv, share: float, reward_scale: float, generator: torch.Generator
    ) -> None:
        """`env`: one like those that are sampled; its `compute_reward` is called later on.

        EnvSpecError if it has no goals.
        """
        self._env, self._share, self._scale = env, share, reward_scale
        self._generator = generator
        self._achieved, self._desired, self._goal = _goals(env)

    def relabel(self, batch: Batch) -> None:
        """Change the goals of some steps, in place, to one achieved later in their episode.

        Later is in this batch: what episodes go on with afterwards is not known yet.
        """
        ended, achieved = batch["done"].bool(), batch["next_observation"][..., self._achieved]
        steps = torch.arange(len(ended), device=ended.device)[:, None].expand_as(ended)
        # The last step of each one's episode, looked up from behind.
        last = torch.where(ended, steps, len(ended) - 1).flip(0).cummin(0).values.flip(0)
        draws = torch.rand(2, *ended.shape, generator=self._generator, device=ended.device)
        later = steps + (draws[0] * (last - steps + 1)).long()
        later = torch.minimum(later, last)  # where a draw is rounded up to 1
        goals = achieved.gather(0, later[..., None].expand_as(achieved))
        chosen = draws[1] < self._share
        batch["raw_observation"][..., self._desired][chosen] = goals[chosen]
        batch["reward"][chosen] = self._scale * self._rewards(achieved[chosen], goals[chosen])

    def carry(self, minibatch: Batch) -> None:
        """Give what followed each step of a minibatch the goal of the step, in place."""
        goals = minibatch["raw_observation"][..., self._desired]
        minibatch["next_observation"][..., self._desired] = goals

    def _rewards(self, achieved: Tensor, desired: Tensor) -> Tensor:
        """Returns the rewards [B] of goals [B, G]."""
        both = (self._structured(achieved), self._structured(desired))
        found = np.asarray(self._env.compute_reward(*both), dtype=np.float32)  # type: ignore[attr-defined]
        if found.shape != (len(achieved),):
            raise EnvError(
                f"compute_reward gave rewards of shape {list(found.shape)} for {len(achieved)} "
                f"goals; must be [{len(achieved)}]. Compute along the last axis."
            )
        return torch.from_numpy(found).to(achieved.device)

    def _structured(self, goals: Tensor) -> NDArray[Any]:
        """Returns goals [B, G] as the environment has them: [B, *shape]."""
        array = goals.cpu().numpy().reshape(len(goals), *self._goal.shape)
        return array.astype(self._goal.dtype)


def _goals(env: VecEnv) -> tuple[slice, slice, Box | MultiBinary]:
    """Returns where goals lie in an observation's vector, and the space of one."""
    space = structured_space(env)
    wanted = "algorithm.hindsight is for goal environments"
    places: dict[Any, tuple[slice, Any]] = {}
    end = 0
    if isinstance(space, Dict):
        for path, leaf in leaves(space):
            begin, end = end, end + width_of(leaf)
            places[path[0] if len(path) == 1 else path] = slice(begin, end), leaf
    lacking = [name for name in _GOALS if name not in places]
    if lacking:
        raise EnvSpecError(
            [
                f"{wanted}, whose observations are a Dict with {' and '.join(_GOALS)}; this one's "
                f"{space} lacks {' and '.join(lacking)}. Leave hindsight out, or add them."
            ]
        )
    (achieved, its), (desired, wished) = (places[name] for name in _GOALS)
    if its.shape != wished.shape or not isinstance(its, Box | MultiBinary):
        raise EnvSpecError(
            [
                f"{wanted}, whose goals are Boxes or MultiBinarys of one shape; these are {its} "
                f"and {wished}. Make them alike."
            ]
        )
    if not callable(getattr(env, "compute_reward", None)):
        raise EnvSpecError(
            [
                f"{wanted}, which have compute_reward(achieved_goal, desired_goal, info); this "
                "one has none that can be called here. Add it, and leave out "
                "env.options.vectorization: async."
            ]
        )
    return achieved, desired, its
