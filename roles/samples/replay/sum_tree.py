"""A sum tree over priorities as array code, the same on the CPU and on a GPU.

A level holds the sums of 64 neighbours of the level below, up to a level of 32,768 numbers at most,
where a target is looked up in their running sum. A wide tree is fast, as the number of operations
costs and not the numbers in each: a million priorities have two levels. Sums are computed anew from
their terms, so that errors do not add up. Numbers are float64: in float32 the running sum of a
million priorities is too coarse to tell two neighbours apart.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_BITS: Final = 6
_WIDTH: Final = 1 << _BITS
_TOP: Final = 32_768  # so that a ring of 2^20 rows and some more has two levels
_BELOW: Final = 1.0 - 2.0**-50  # the greatest target, as a share of the sum


class SumTree:
    """Holds `size` priorities, none of them negative; all are 0 to begin with."""

    def __init__(self, size: int, device: torch.device, *, has_least: bool = False) -> None:
        """`has_least`: whether to keep the least of each 64 priorities, for `least`."""
        sizes = [size]
        while sizes[-1] > _TOP:
            sizes.append(-(-sizes[-1] // _WIDTH))
        # Each level is padded to whole groups, but for the top.
        self._levels = [
            torch.zeros(-(-n // _WIDTH) * _WIDTH, dtype=torch.float64, device=device) for n in sizes
        ]
        self._groups = [level.view(-1, _WIDTH) for level in self._levels]
        self.priorities = self._levels[0][:size]
        self._least: Tensor | None = None
        if has_least:
            self._least = torch.full_like(self._groups[0][:, 0], torch.inf)
        # The running sums to the left of each number of the top level, and the total behind.
        self._running = torch.zeros(len(self._levels[-1]) + 1, dtype=torch.float64, device=device)

    @property
    def total(self) -> Tensor:
        return self._levels[-1].sum()

    def least(self) -> Tensor:
        """Returns the least priority above 0."""
        assert self._least is not None
        return self._least.min()

    def fill(self, first: int, until: int, priority: Tensor | float) -> None:
        """Sets the priorities of the places from `first` up to `until`."""
        self.priorities[first:until] = priority
        for level, groups in enumerate(self._groups):
            first, until = first // _WIDTH, -(-until // _WIDTH)
            if level == 0 and self._least is not None:
                self._least[first:until] = _least_of(groups[first:until])
            if level + 1 < len(self._levels):
                torch.sum(groups[first:until], -1, out=self._levels[level + 1][first:until])

    def set(self, places: Tensor, priorities: Tensor) -> None:
        """Sets the priorities [B] of places [B]; the greatest for a place that is named twice."""
        self._levels[0].scatter_reduce_(0, places, priorities, "amax", include_self=False)
        if self._least is not None:
            changed = places >> _BITS
            self._least.index_copy_(0, changed, _least_of(self._groups[0][changed]))
        for groups, above in zip(self._groups[:-1], self._levels[1:], strict=True):
            places = places >> _BITS
            above.index_copy_(0, places, groups.index_select(0, places).sum(-1))

    def find(self, shares: Tensor) -> Tensor:
        """Returns the places [B] where the running sum passes the shares [B] of the total.

        Shares lie in [0, 1). A place whose priority is 0 is not found; not all may be 0.
        """
        running = self._running
        torch.cumsum(self._levels[-1], 0, out=running[1:])
        # Strictly below the sum, so that the place found has a priority above 0.
        target = shares.clamp(max=_BELOW).mul_(running[-1])
        place = torch.searchsorted(running, target, right=True).sub_(1)
        remainder = target.sub_(running.index_select(0, place)).unsqueeze_(-1)
        for level in reversed(range(len(self._groups) - 1)):
            running = self._groups[level].index_select(0, place).cumsum_(-1)
            # The sum in the level above was rounded differently.
            remainder = torch.minimum(remainder, running[:, -1:] * _BELOW)
            child = torch.searchsorted(running, remainder, right=True)
            place = torch.add(child.squeeze(-1), place, alpha=_WIDTH)
            if level:
                value = self._levels[level].index_select(0, place).unsqueeze_(-1)
                sum_before = running.gather(1, child).sub_(value)
                remainder = remainder.sub_(sum_before).clamp_(min=0.0)
        return place


def _least_of(groups: Tensor) -> Tensor:
    return groups.masked_fill(groups == 0.0, torch.inf).amin(-1)
