"""Holds samplers and learner of a replay to a ratio of minibatches to rows."""

from __future__ import annotations

from typing import Any


class Limiter:
    """Says when minibatches are due: so many for each row that came in after the first `start`.

    It counts rows and not what is stored, so that all GMIs take the same steps also where one was
    restarted. Under changed settings what was due before stays what it was. Rows that come in while
    a replay is filled anew, up to `start`, make nothing due.
    """

    def __init__(self, start: int, updates_per_row: float) -> None:
        self._start, self._updates_per_row = start, updates_per_row
        self.rows = self.drawn = 0
        self._filled = 0  # rows since the replay was empty
        self._due = 0.0  # minibatches, since the beginning

    def add(self, rows: int) -> None:
        """Counts rows that came in."""
        before, self._filled = max(self._filled, self._start), self._filled + rows
        self.rows += rows
        self._due += max(self._filled - before, 0) * self._updates_per_row

    def ready(self) -> bool:
        """Tells whether fewer were drawn than are due."""
        return self.drawn < self._due

    def begin_anew(self) -> None:
        """Waits for the first `start` rows again, as the replay is empty."""
        self._filled = 0

    def state_dict(self) -> dict[str, float]:
        return {
            "rows": self.rows, "drawn": self.drawn, "due": self._due, "filled": self._filled,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.drawn, self._due = state["rows"], state["drawn"], state["due"]
        self._filled = state["filled"]
