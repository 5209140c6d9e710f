"""Sources of minibatches that are kept: what was put in is drawn again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from gmi_drl.roles.errors import CheckpointError

from .batch import Batch


class Source(Protocol):
    """Gives an optimizer its minibatches, from what is put in."""

    def put(self, batch: Batch) -> None:
        """Take a batch [T, N] in; its memory may be overwritten afterwards."""

    def ready(self) -> bool:
        """Tell whether a minibatch is due, in all GMIs that put as many rows alike."""

    def next(self) -> tuple[Batch, Tensor]:
        """Draw a minibatch [B], and the keys [B] that its rows have in `feedback`."""

    def feedback(self, keys: Tensor, priorities: Tensor | None) -> None:
        """Learn the priorities [B] of rows that were drawn, where a loss gives them."""


class Limiter:
    """Says when minibatches are due: so many for each row that came in after the first `start`.

    It counts rows and not what is stored, so that all GMIs take the same steps also where one was
    restarted. Under changed settings what was due before stays what it was.
    """

    def __init__(self, start: int, updates_per_row: float) -> None:
        self._start, self._updates_per_row = start, updates_per_row
        self.rows = self.drawn = 0
        self._due = 0.0  # minibatches, since the beginning

    def add(self, rows: int) -> None:
        """Count rows that came in."""
        before, self.rows = max(self.rows, self._start), self.rows + rows
        self._due += max(self.rows - before, 0) * self._updates_per_row

    def ready(self) -> bool:
        """Tell whether fewer were drawn than are due."""
        return self.drawn < self._due

    def state_dict(self) -> dict[str, float]:
        return {"rows": self.rows, "drawn": self.drawn, "due": self._due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.drawn, self._due = state["rows"], state["drawn"], state["due"]


class UniformReplay:
    """The last `capacity` rows that were put in, of which all are drawn alike, with replacement.

    It keeps the columns `fields`, each in its own type; bytes are drawn as float32.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        limiter: Limiter,
        generator: torch.Generator,
        fields: Sequence[str],
    ) -> None:
        self._capacity, self.batch_size = capacity, batch_size
        self.limiter, self._generator = limiter, generator
        self._fields = tuple(fields)
        self._columns: dict[str, Tensor] = {}  # [capacity, ...]
        self._written = 0  # rows: the next one's place is the rest by `capacity`

    def __len__(self) -> int:
        return min(self._written, self._capacity)

    def put(self, batch: Batch) -> None:
        rows = {name: batch[name].flatten(0, 1) for name in self._fields}
        self._write(rows)
        self.limiter.add(len(next(iter(rows.values()))))

    def take_back(self, rows: int) -> None:
        """Forget the last `rows` that were put in; what they were written over is lost."""
        self._written = max(self._written - rows, 0)

    def ready(self) -> bool:
        return self._written > 0 and self.limiter.ready()

    def next(self) -> tuple[Batch, Tensor]:
        device = self._generator.device
        keys = torch.randint(
            len(self), (self.batch_size,), generator=self._generator, device=device
        )
        self.limiter.drawn += 1
        drawn = {name: column.index_select(0, keys) for name, column in self._columns.items()}
        floats = {n: column.float() for n, column in drawn.items() if column.dtype == torch.uint8}
        return Batch(drawn | floats), keys

    def feedback(self, keys: Tensor, priorities: Tensor | None) -> None:
        """All rows are drawn alike, whatever was learned from them."""

    def state_dict(self) -> dict[str, Any]:
        """Give what is stored, in the order of their places; the memory itself where it is full."""
        stored = {  # a view would be saved with all of its memory
            name: column if len(self) == self._capacity else column[: len(self)].clone()
            for name, column in self._columns.items()
        }
        return {"columns": stored, "place": self._written % self._capacity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the one that gave it; of another capacity, with the newest rows that fit."""
        columns = state["columns"]
        if columns and columns.keys() != set(self._fields):
            raise CheckpointError(
                f"the replay of this checkpoint keeps {', '.join(columns)}; the algorithm keeps "
                f"{', '.join(self._fields)}. Begin anew, or go on by the version that wrote it."
            )
        alike = all(len(rows) == self._capacity for rows in columns.values())
        # In the same places as there, so that the same keys draw the same rows.
        self._written = state["place"] if alike else 0
        self._write({name: rows.roll(-state["place"], 0) for name, rows in columns.items()})

    def _write(self, rows: dict[str, Tensor]) -> None:
        """Write rows [B, ...] behind the last ones, over the oldest."""
        count = max((len(column) for column in rows.values()), default=0)
        kept = min(count, self._capacity)
        first = (self._written + count - kept) % self._capacity
        until_end = min(kept, self._capacity - first)
        for name, column in rows.items():
            ring = self._columns.get(name)
            if ring is None:
                shape, device = column.shape[1:], self._generator.device
                ring = torch.zeros(self._capacity, *shape, dtype=column.dtype, device=device)
                self._columns[name] = ring
            newest = column[count - kept :]
            ring[first : first + until_end].copy_(newest[:until_end])
            ring[: kept - until_end].copy_(newest[until_end:])
        self._written += count
