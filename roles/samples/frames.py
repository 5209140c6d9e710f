"""Observations of bytes as a batch keeps them: each frame once, also if stacks share it.

T = steps, N = environments, D = width of an observation, k = frames of a stack, F = D / k bytes of
a frame, B = rows of a minibatch. Observations that are no stacks are stacks of one frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gmi_drl.roles.envs.protocol import Stacking

if TYPE_CHECKING:
    from gmi_drl.roles.algorithms.algorithm import Algorithm


@dataclass(frozen=True)
class Observed:
    """Says how a batch keeps observations [D]."""

    width: int  # D
    of_bytes: bool = False
    stacking: Stacking | None = None  # of bytes that are kept as frames, and not in packed rows

    @classmethod
    def of(cls, env: Any, width: int, algorithm: Algorithm) -> Observed:
        """Returns how they are kept for an algorithm; `env` has the environments' spaces."""
        if env.observation_space.dtype != np.uint8:
            return cls(width)
        if algorithm.normalizers.observations is not None:
            return cls(width, of_bytes=True)
        stacking: Stacking | None = getattr(env, "stacking", None)
        # Transitions, each with its next observation, are kept as whole stacks.
        transitions = algorithm.settings.kept_steps or "next_observation" in algorithm.recorded
        knows_ends = not algorithm.whole_segments or "done" in algorithm.segment_fields
        if stacking is None or transitions or not knows_ends:
            stacking = Stacking(1, width)
        return cls(width, of_bytes=True, stacking=stacking)

    @property
    def dtype(self) -> torch.dtype:
        """Returns the type of the numbers that are kept."""
        return torch.uint8 if self.of_bytes else torch.float32

    @property
    def frame(self) -> int:
        """Returns the numbers that are kept of each step: F."""
        return self.width if self.stacking is None else self.width // self.stacking.count


class Frames:
    """The frames of the observations of T steps of N environments: T + k - 1 of each.

    `kept` [T + k - 1, N, F] uint8 begins with the older frames of the first stack. `done` [T, N] is
    1 where an episode ended with the step; the next observation is of a new one.
    """

    def __init__(self, kept: Tensor, done: Tensor, stacking: Stacking) -> None:
        self.kept, self.done, self.stacking = kept, done, stacking
        self.width = stacking.count * kept.shape[-1]

    @property
    def older(self) -> Tensor:
        """Returns the older frames [k - 1, N, F] of the first step; a view."""
        return self.kept[: self.stacking.count - 1]

    @property
    def newest(self) -> Tensor:
        """Returns the newest frame [T, N, F] of each step; a view."""
        return self.kept[self.stacking.count - 1 :]

    def begin(self, observation: Tensor) -> None:
        """Keeps the older frames of the first observations [N, D]."""
        frames = self.stacking.frames(observation)  # [N, places, k, channels]
        for age, frame in enumerate(self.older):
            self._at(frame).copy_(frames[:, :, age])

    def record(self, place: Tensor, observation: Tensor) -> None:
        """Keeps the newest frame of observations [N, D] in `place` [N, F], a part of `newest`."""
        self._at(place).copy_(self.stacking.frames(observation)[:, :, -1])

    def rows(self, picked: Tensor, out: Tensor) -> None:
        """Writes the observations of steps `picked` [B], t * N + n, into `out` [B, D]."""
        num_env = self.done.shape[1]
        count, channels = self.stacking.count, self.stacking.channels
        index = self._index().flatten(0, 1)[picked] * num_env + (picked % num_env)[:, None]
        frames = self.kept.flatten(0, 1).index_select(0, index.flatten())  # [B k, F]
        stacks = frames.view(len(picked), count, -1, channels).transpose(1, 2)
        self.stacking.frames(out).copy_(stacks)

    def environments(self, picked: Tensor) -> Frames:
        """Returns the frames of some environments [n], copied."""
        kept, done = (part.index_select(1, picked) for part in (self.kept, self.done))
        return Frames(kept, done, self.stacking)

    def all(self, out: Tensor) -> None:
        """Writes the observations of all steps into `out` [T, N, D]."""
        self.rows(torch.arange(self.done.numel(), device=self.done.device), out.flatten(0, 1))

    def _at(self, place: Tensor) -> Tensor:
        """Returns frames [N, F] as [N, places, channels]; a view."""
        return torch.unflatten(place, -1, (-1, self.stacking.channels))

    def _index(self) -> Tensor:
        """Returns the index in `kept` of each frame of each stack: [T, N, k]."""
        count, device = self.stacking.count, self.done.device
        steps = torch.arange(len(self.done), device=device)[:, None]
        # The step that an episode began with: 0 for one that began before the first step.
        begins = torch.zeros(self.done.shape, dtype=torch.int64, device=device)
        begins[1:] = torch.where(self.done[:-1] > 0, steps[1:] + count - 1, 0)
        first = begins.cummax(0).values
        ages = torch.arange(count, device=device)
        return torch.maximum(steps[..., None] + ages, first[..., None])
