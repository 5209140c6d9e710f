"""Holds samplers and learner of a replay to a ratio of minibatches to rows."""

from __future__ import annotations

import math
from typing import Any, Final

_ROUNDING: Final = 1e-6  # of a minibatch: 0.1 times 860 is a little more than 86


class Limiter:
    """Says when minibatches are due: `updates_per_row` for each row after the first `start`.

    It counts the rows that came in, not those that are stored, so that all GMIs take the same steps
    also after one was restarted. Minibatches that were due before settings changed stay due. Rows
    that fill an emptied replay up to `start` make none due.
    """

    def __init__(self, start: int, updates_per_row: float) -> None:
        self._start, self._updates_per_row = start, updates_per_row
        self.rows = self.drawn = 0
        self._filled = 0  # rows since the replay was empty
        self._due_before = 0.0  # minibatches, up to the checkpoint that was loaded
        self._counted = 0  # rows since then that make minibatches due

    def add(self, rows: int) -> None:
        """Counts rows that came in."""
        threshold, self._filled = max(self._filled, self._start), self._filled + rows
        self.rows += rows
        self._counted += max(self._filled - threshold, 0)

    @property
    def _due(self) -> float:
        """Returns the minibatches that are due since the beginning, without summed-up rounding."""
        return self._due_before + self._counted * self._updates_per_row

    @property
    def waiting(self) -> int:
        """Returns how many more minibatches are due than were drawn; at least 0."""
        return max(0, math.ceil(self._due - _ROUNDING) - self.drawn)

    def ready(self) -> bool:
        """Tells whether fewer were drawn than are due."""
        return self.waiting > 0

    def begin_anew(self) -> None:
        """Waits for `start` rows again, as the replay is empty."""
        self._filled = 0

    def state_dict(self) -> dict[str, float]:
        return {
            "rows": self.rows, "drawn": self.drawn, "due": self._due, "filled": self._filled,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.drawn = state["rows"], state["drawn"]
        self._due_before, self._counted = state["due"], 0
        self._filled = state["filled"]
