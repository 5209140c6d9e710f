"""What a run writes down as it goes: metrics.jsonl and TensorBoard, from one GMI of the run."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

_WINDOW = 100  # episodes a reported return is the mean of


class ReturnWindow:
    """Mean return and length of the last episodes: at least 100 of them, whole iterations."""

    def __init__(self) -> None:
        self._iterations: deque[tuple[float, float, float]] = deque()

    def add(self, count: float, return_sum: float, length_sum: float) -> None:
        """Count the episodes that ended in one iteration."""
        if count:
            self._iterations.append((count, return_sum, length_sum))
        while sum(c for c, _, _ in list(self._iterations)[1:]) >= _WINDOW:
            self._iterations.popleft()

    def means(self) -> tuple[float | None, float | None]:
        """Mean return and mean length; None before the first episode ended."""
        count = sum(c for c, _, _ in self._iterations)
        if not count:
            return None, None
        returns = sum(r for _, r, _ in self._iterations)
        return returns / count, sum(n for _, _, n in self._iterations) / count

    def state_dict(self) -> list[list[float]]:
        return [list(row) for row in self._iterations]

    def load_state_dict(self, state: list[list[float]]) -> None:
        self._iterations = deque((row[0], row[1], row[2]) for row in state)


class MetricsLog:
    """One JSON line an iteration in `metrics.jsonl`, and the same numbers for TensorBoard.

    On a resume the lines after the checkpoint's iteration go: they will be made again.
    """

    def __init__(self, folder: Path, resumed_iteration: int = 0) -> None:
        path = folder / "metrics.jsonl"
        if path.exists():
            _keep_until(path, resumed_iteration)
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (close)
        purge = resumed_iteration + 1 if resumed_iteration else None
        self._board = SummaryWriter(str(folder / "tb"), purge_step=purge, flush_secs=30)

    def write(self, metrics: dict[str, Any]) -> None:
        """Append one iteration's metrics; OSError when the disk does not take them."""
        self._file.write(json.dumps(metrics) + "\n")
        iteration = metrics["iteration"]
        for key, value in metrics.items():
            if isinstance(value, (int, float)) and key != "iteration":
                self._board.add_scalar(f"train/{key}", value, iteration)

    def close(self) -> None:
        self._file.close()
        self._board.close()


def _keep_until(path: Path, iteration: int) -> None:
    """Rewrite a metrics file without the lines after `iteration` and without a torn last line."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["iteration"] <= iteration:
                kept.append(line)
        except (ValueError, KeyError):
            continue
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in kept)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
