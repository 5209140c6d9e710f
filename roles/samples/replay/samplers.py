"""Draws rows of a replay: all alike, or by priorities (Schaul et al., 2016)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.graphs import static_on

from .sum_tree import SumTree


class Sampler(Protocol):
    """Draws places of rows; a row r lies at the place r % places."""

    foresees: ClassVar[bool]  # draws do not depend on what `update` learns

    def anneal(self, progress: float) -> None:
        """Takes note of `progress`, the share of all steps that is done: 0 to 1."""

    def put(self, rows: range, priorities: Tensor | None = None) -> None:
        """Adds rows that were written, with their priorities if there are any."""

    def drop(self, rows: range) -> None:
        """Removes rows, which are not drawn any more."""

    def draw(
        self, size: int, rows: range, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """Draws places [size] of `rows`, with replacement, and weights [size] or None."""

    def update(self, places: Tensor, priorities: Tensor | None) -> None:
        """Learns the priorities [B] of rows that were drawn."""

    def bad(self) -> tuple[int, float] | None:
        """Returns the first invalid priority and its place; waits for the device."""

    def state_dict(self, rows: range) -> dict[str, Any]:
        """Returns the state of these rows."""

    def load_state_dict(self, state: Mapping[str, Any], rows: range) -> None:
        """Loads `state`, whose newest rows are now `rows`."""


class UniformSampler:
    """Draws all rows with the same probability."""

    foresees: ClassVar[bool] = True

    def __init__(self, places: int, device: torch.device) -> None:
        self._places, self._device = places, device

    def anneal(self, progress: float) -> None:
        """Changes nothing."""

    def put(self, rows: range, priorities: Tensor | None = None) -> None:
        """Records nothing: `draw` is given the rows."""

    def drop(self, rows: range) -> None:
        """Records nothing: `draw` is given the rows."""

    def draw(
        self, size: int, rows: range, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        start = rows.start % self._places
        places = torch.randint(
            start, start + len(rows), (size,), generator=generator, device=generator.device
        )
        if start + len(rows) > self._places:
            places.remainder_(self._places)
        return places.to(self._device), None

    def update(self, places: Tensor, priorities: Tensor | None) -> None:
        """Learns nothing."""

    def bad(self) -> tuple[int, float] | None:
        return None

    def state_dict(self, rows: range) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any], rows: range) -> None:
        """Loads nothing."""


class PrioritizedSampler:
    """Draws rows in proportion to (priority + eps) ** alpha, one from each of B equal shares.

    A row that has not been drawn has the priority that it came with, or else the greatest so far.
    The weights (N P) ** -beta of a minibatch are divided by their maximum in it, or (`weights_by`
    buffer) by that of all rows. `anneal` raises beta linearly to 1. With alpha 0 draws are uniform,
    with beta 0 all weights are 1.
    """

    foresees: ClassVar[bool] = False

    def __init__(
        self,
        places: int,
        device: torch.device,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
        weights_by: Literal["minibatch", "buffer"] = "minibatch",
        static: bool | None = None,
    ) -> None:
        """`static`: work as on a GPU, which waits for nothing."""
        self._places, self._device = places, device
        self._alpha, self._eps, self._first_beta = alpha, eps, beta
        self.beta, self._weights_by_buffer = beta, weights_by == "buffer"
        self._static = static_on(device, static)
        self._tree = SumTree(places, device, has_least=self._weights_by_buffer)
        self._greatest = torch.ones((), dtype=torch.float64, device=device)  # with alpha inside
        self._bad = torch.full((2,), -1.0, dtype=torch.float64, device=device)
        self._shares: Tensor | None = None

    def anneal(self, progress: float) -> None:
        """Sets beta for `progress`, the share of all steps that is done: 0 to 1."""
        self.beta = self._first_beta + (1.0 - self._first_beta) * min(progress, 1.0)

    def put(self, rows: range, priorities: Tensor | None = None) -> None:
        if priorities is None:
            self._fill(rows, self._greatest)
        else:
            places = torch.arange(rows.start, rows.stop, device=self._device) % self._places
            self.update(places, priorities)

    def drop(self, rows: range) -> None:
        self._fill(rows, 0.0)

    def draw(
        self, size: int, rows: range, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        if self._shares is None or len(self._shares) != size:
            self._shares = torch.arange(size, dtype=torch.float64, device=self._device)
        targets = torch.rand(
            size, generator=generator, dtype=torch.float64, device=generator.device
        ).to(self._device)
        places = self._tree.find(targets.add_(self._shares).div_(size))
        # (N P) ** -beta over the greatest of these: N and the sum of all priorities cancel.
        priorities = self._tree.priorities.index_select(0, places)
        smallest = self._tree.least() if self._weights_by_buffer else priorities.min()
        return places, (smallest / priorities).float().pow_(self.beta)

    def update(self, places: Tensor, priorities: Tensor | None) -> None:
        priorities = checked_priorities(priorities, len(places))
        places, priorities = places.to(self._device), priorities.detach().to(self._device)
        if self._static or not _all_good(priorities):
            priorities = self._without_bad(places, priorities)
        scaled = priorities.float().add(self._eps).pow_(self._alpha).double()
        self._tree.set(places, scaled)
        self._greatest = torch.maximum(self._greatest, scaled.max())

    def bad(self) -> tuple[int, float] | None:
        place, value = self._bad.tolist()
        return None if place < 0 else (int(place), value)

    def state_dict(self, rows: range) -> dict[str, Any]:
        places = torch.arange(rows.start, rows.stop, device=self._device) % self._places
        return {
            "priorities": self._tree.priorities[places], "greatest": self._greatest,
            "alpha": self._alpha,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any], rows: range) -> None:
        if "priorities" not in state:  # the state is of a uniform sampler
            self.put(rows)
            return
        power = self._alpha / state["alpha"] if state["alpha"] else 1.0  # saved to that alpha
        self._greatest.copy_(state["greatest"] ** power)
        newest = state["priorities"][len(state["priorities"]) - len(rows) :].to(self._device)
        newest = newest**power
        for piece in _pieces(rows, self._places):
            first = rows.index(piece.start)
            place = piece.start % self._places
            self._tree.fill(place, place + len(piece), newest[first : first + len(piece)])

    def _fill(self, rows: range, priority: Tensor | float) -> None:
        for piece in _pieces(rows, self._places):
            place = piece.start % self._places
            self._tree.fill(place, place + len(piece), priority)

    def _without_bad(self, places: Tensor, priorities: Tensor) -> Tensor:
        """Returns priorities with 0 for invalid ones, the first of which it notes for `bad`."""
        bad = ~((priorities >= 0.0) & (priorities < math.inf))
        first = bad.int().argmax(keepdim=True)
        entry = torch.cat([places.gather(0, first).double(), priorities.gather(0, first).double()])
        is_new = bad.gather(0, first) & (self._bad[0] < 0)
        self._bad = torch.where(is_new, entry, self._bad)
        return priorities.masked_fill(bad, 0.0)


def checked_priorities(priorities: Tensor | None, rows: int) -> Tensor:
    """Returns the priorities [rows] of a loss; RoleError for none, or of another shape."""
    if priorities is None:
        raise RoleError(
            "algorithm.sampler=prioritized; the algorithm's losses give no priorities. Give "
            "Losses.extras['priorities'] [B], or set sampler: uniform."
        )
    if priorities.shape != (rows,):
        raise RoleError(
            f"Losses.extras['priorities'] is of shape {list(priorities.shape)}; must be one "
            f"number for each row of the minibatch, [{rows}]. Give it so."
        )
    return priorities


def _all_good(priorities: Tensor) -> bool:
    low, high = map(float, torch.aminmax(priorities))
    return low >= 0.0 and high < math.inf  # NaN is neither


def _pieces(rows: range, places: int) -> Iterator[range]:
    """Yields parts of `rows` whose places are contiguous."""
    while rows:
        count = min(len(rows), places - rows.start % places)
        yield rows[:count]
        rows = rows[count:]
