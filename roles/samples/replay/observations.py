"""Keeps observations once, and only the newest frame of each stack of frames.

N = environments, P = places, B = rows of a minibatch, D = width of an observation, k = frames of a
stack, F = D / k numbers of a frame. An observation that is no stack is a stack of one frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.roles.envs.protocol import Stacking

from .rings import SideRing, StepRing

# How the stack of a row began: it goes on from the row N places before; it began with its first
# frame k times; or, from 0 on, with the older frames of that number.
_GOES_ON: Final = -2
_REPEATED: Final = -1
_PART: Final = 1024  # one place in so many has room for older frames of its own at first


class StoredObservations:
    """The newest frames of rows in a ring, and the older frames that stacks began with.

    A stack is gathered from the frames of the k rows up to its own, back to the row that it began
    with. Unless it begins, a stack is the one before it without the oldest frame and with a new
    one: see Stacking.
    """

    def __init__(
        self,
        ring: StepRing,
        like: Tensor,
        stacking: Stacking | None,
        *,
        device: torch.device,
        static: bool,
        check_memory: Callable[[int], None],
    ) -> None:
        """`like` [..., D]: an example of the observations."""
        width = like.shape[-1]
        self._ring, self._stacking = ring, stacking or Stacking(1, width)
        self._static, self.count = static, self._stacking.count
        frame, count = width // self.count, self.count
        self.frames = torch.zeros(ring.places, frame, dtype=like.dtype, device=device)  # [P, F]
        self._begins: Tensor | None = None
        if count == 1:
            return
        self._begins = torch.full((ring.places,), _GOES_ON, device=device)
        self._ages = torch.arange(count, device=device)
        self._older = SideRing(
            _number_of_older(ring), self.frames.new_zeros(1, count - 1, frame), static=static,
            in_use=self._numbers, check_memory=check_memory,
        )  # fmt: skip

    @staticmethod
    def nbytes(ring: StepRing, like: Tensor, stacking: Stacking | None) -> int:
        """Returns the bytes that observations like these take at the beginning."""
        width, count = like.shape[-1], 1 if stacking is None else stacking.count
        frame = width // count * like.itemsize
        extra = 0
        if count > 1:
            extra = 8 * ring.places + _number_of_older(ring) * (count - 1) * frame
        return ring.places * frame + extra

    def put(self, observation: Tensor, done: Tensor, goes_on: Tensor, steps: range) -> None:
        """Writes observations [T, N, D] of steps.

        `done` [T, N]: an episode ended with the step; `goes_on` [N]: the first observation is what
        the step before led to.
        """
        self._ring.write(self.frames, self.newest(observation), steps)
        if self._begins is None:
            return
        begins = torch.full(done.shape, _GOES_ON, device=self._begins.device)
        begins[1:].masked_fill_(done[:-1].to(begins.device) > 0, _REPEATED)
        first = self._split(observation[0]).to(self.frames.device)  # [N, k, F]
        repeated = (first == first[:, -1:]).flatten(1).all(1)
        number = self._older.keep(~(goes_on | repeated), first[:, :-1])
        number = number.masked_fill_(repeated, _REPEATED).masked_fill_(goes_on, _GOES_ON)
        begins[0].copy_(number)
        self._ring.write(self._begins, begins, steps)

    def put_head(self, observation: Tensor, step: int) -> None:
        """Writes observations [N, D] in the place of the next step, which has the same."""
        self.frames[self._ring.step(step)].copy_(self.newest(observation))

    def newest(self, observation: Tensor) -> Tensor:
        """Returns the newest frames [..., F] of observations [..., D]."""
        return self._stacking.frames(observation)[..., -1, :].flatten(-2)

    def at(self, places: Tensor) -> Tensor:
        """Returns the observations [B, D] of rows, copied."""
        if self._begins is None:
            return self.frames.index_select(0, places)
        return self._join(self._gather(places))

    def after(self, places: Tensor, newest: Tensor) -> Tensor:
        """Returns the next observations [B, D] of rows, whose newest frames are `newest` [B, F]."""
        if self._begins is None:
            return newest
        return self._join(torch.cat([self._gather(places)[:, 1:], newest[:, None]], 1))

    def clear(self) -> None:
        """Forgets all older frames."""
        if self._begins is not None:
            self._begins.fill_(_GOES_ON)

    def _gather(self, places: Tensor) -> Tensor:
        """Returns the frames [B, k, F] of stacks, the oldest first."""
        assert self._begins is not None
        last = self.count - 1
        window = (places[:, None] - self._ages * self._ring.num_env) % self._ring.places  # [B, k]
        begins = self._begins.take(window[:, :-1])
        # Steps since the stack began, k - 1 where that was before all of its frames.
        since = ((begins != _GOES_ON).cumsum(1) == 0).sum(1, keepdim=True)
        picked = window.gather(1, torch.minimum(self._ages, since).flip(1))
        frames = torch.unflatten(self.frames.index_select(0, picked.flatten()), 0, window.shape)
        number = begins.gather(1, since.clamp(max=last - 1)).masked_fill(since == last, _GOES_ON)
        if self._static:
            self._fill_older(frames, since, number)
        elif len(stacks := (number >= 0).squeeze(1).nonzero().squeeze(1)):
            filled = frames[stacks]
            self._fill_older(filled, since[stacks], number[stacks])
            frames[stacks] = filled
        return frames

    def _fill_older(self, frames: Tensor, since: Tensor, number: Tensor) -> None:
        """Writes the older frames that stacks [B, k, F] began with, where `number` [B, 1] says."""
        index = since + self._ages[:-1]  # each step drops one: [B, k - 1]
        has_older = (number >= 0) & (index < self.count - 1)
        older = self._older.take(number.squeeze(1))
        index = index.clamp(max=self.count - 2)[..., None].expand_as(older)
        newer = frames[:, :-1]
        newer.copy_(torch.where(has_older[..., None], older.gather(1, index), newer))

    def _split(self, observation: Tensor) -> Tensor:
        """Returns stacks [..., D] as frames [..., k, F], the oldest first."""
        return self._stacking.frames(observation).transpose(-3, -2).flatten(-2)

    def _join(self, frames: Tensor) -> Tensor:
        """Returns frames [B, k, F] as stacks [B, D]."""
        channels = self._stacking.channels
        by_channel = frames.view(*frames.shape[:2], frames.shape[2] // channels, channels)
        return torch.stack(by_channel.unbind(1), 2).flatten(1)  # faster than to transpose

    def _numbers(self) -> Tensor:
        assert self._begins is not None
        return self._begins[self._begins >= 0]

    # Checkpoints ------------------------------------------------------------------------------

    @property
    def columns(self) -> dict[str, Tensor]:
        """Returns the columns of places, the memory itself."""
        columns = {"raw_observation": self.frames}
        return columns if self._begins is None else columns | {"begins": self._begins}

    def state_dict(self) -> dict[str, Any]:
        """Returns what is kept besides the columns."""
        if self._begins is None:
            return {}
        return dict(zip(("older", "next_older"), self._older.state(), strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` gave; the storage copies the columns."""
        if self._begins is not None:
            self._older.load(state["older"], state["next_older"])


def _number_of_older(ring: StepRing) -> int:
    return max(2 * ring.num_env, ring.places // _PART)
