"""Ring buffers: the places of steps, and memory for what only few of them have.

S = steps that there is room for, N = environments, P = S * N places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor


class StepRing:
    """The places of steps of N environments in columns [P, ...]: row r lies at r % P."""

    def __init__(self, slots: int, num_env: int) -> None:
        self.slots, self.num_env, self.places = slots, num_env, slots * num_env

    def step(self, step: int) -> slice:
        """Returns the places of a step."""
        slot = step % self.slots
        return slice(slot * self.num_env, (slot + 1) * self.num_env)

    def pieces(self, steps: range) -> Iterator[tuple[slice, slice]]:
        """Yields the places of successive steps, and which of these lie there: in two at most."""
        done = 0
        while done < len(steps):
            slot = (steps.start + done) % self.slots
            count = min(len(steps) - done, self.slots - slot)
            yield (
                slice(slot * self.num_env, (slot + count) * self.num_env),
                slice(done, done + count),
            )
            done += count

    def write(self, column: Tensor, values: Tensor, steps: range) -> None:
        """Writes values [T, N, ...] of T steps into a column."""
        for places, part in self.pieces(steps):
            column[places].copy_(values[part].flatten(0, 1))


class SideRing:
    """Keeps values that only few rows have, in memory that grows with their number.

    Each value gets a number, counted since the beginning. `in_use` gives the numbers that rows
    still refer to, and `check_memory` raises unless so many more bytes are free.
    """

    def __init__(
        self,
        size: int,
        like: Tensor,
        *,
        static: bool,
        in_use: Callable[[], Tensor],
        check_memory: Callable[[int], None],
    ) -> None:
        """`like` [1, ...]: an example of the values; `static`: without waiting, as on a GPU."""
        # One more, where a GPU writes what is not kept.
        self._kept = like.new_zeros(size + 1, *like.shape[1:])
        self._static, self._in_use, self._check_memory = static, in_use, check_memory
        self._next = torch.zeros((), dtype=torch.int64, device=like.device)
        self._used = 0  # slots, at most

    def take(self, numbers: Tensor) -> Tensor:
        """Returns the values of `numbers` [B], copied; any value for a negative number."""
        return self._kept.index_select(0, numbers % (len(self._kept) - 1))

    def keep(self, which: Tensor, values: Tensor) -> Tensor:
        """Keeps the `values` [M, ...] where `which` [M] is set, and returns their numbers [M]."""
        rows = None if self._static else which.nonzero().squeeze(-1)
        self._make_room(len(which if rows is None else rows))
        number = self._next + which.cumsum(0) - 1
        self._next = self._next + which.sum()
        slots = len(self._kept) - 1
        if rows is None:
            index = torch.where(which, number % slots, slots)
            self._kept.index_copy_(0, index, values.to(self._kept))
        elif len(rows):
            self._kept[number[rows] % slots] = values[rows.to(values.device)].to(self._kept)
        return number

    def _make_room(self, count: int) -> None:
        """Makes room for `count` more values; waits for the device at times."""
        slots = len(self._kept) - 1
        self._used += count
        if self._used <= slots:
            return
        numbers, end = self._in_use(), int(self._next)
        begin = int(numbers.min()) if len(numbers) else end
        self._used = end - begin + count
        if 4 * self._used > 3 * slots:  # so that this is seldom done
            size = 2 * self._used
            self._check_memory(size * self._kept[0].numel() * self._kept.itemsize)
            larger = self._kept.new_zeros(size + 1, *self._kept.shape[1:])
            numbers_kept = torch.arange(begin, end, device=larger.device)
            larger[numbers_kept % size] = self._kept[numbers_kept % slots]
            self._kept = larger

    def state(self) -> Sequence[Tensor]:
        """Returns the memory of the values, and the next number."""
        return self._kept, self._next

    def load(self, kept: Tensor, next_number: Tensor) -> None:
        """Loads what `state` gave."""
        self._kept = kept.to(self._kept.device, copy=True)
        self._next = next_number.to(self._next.device, copy=True)
        self._used = len(kept)  # at most: it is counted when more is kept
