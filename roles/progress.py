"""What a run writes down as it goes: metrics.jsonl and TensorBoard, from one GMI of the run."""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter

from gmi_drl.comm import Group

_WINDOW = 100  # episodes a reported return is the mean of
_PHASES = ("simulate", "infer", "train", "reduce")


@dataclass(frozen=True)
class Agreement:
    """What all GMIs know after an iteration."""

    stop: bool  # somebody was asked to
    return_mean: float | None  # of the last 100 episodes; None before the first one ended
    metrics: dict[str, Any]  # to be written down; phases are means over the GMIs
    gmi_seconds: list[dict[str, float]]  # of each phase, by rank


class EpisodeWindow:
    """Mean return and length of the last 100 episodes.

    It holds whole iterations: the fewest that have 100 episodes.
    """

    def __init__(self) -> None:
        self._iterations: deque[tuple[float, float, float]] = deque()

    def add(self, count: float, return_sum: float, length_sum: float) -> None:
        """The episodes that ended in an iteration."""
        if count:
            self._iterations.append((count, return_sum, length_sum))
        while sum(c for c, _, _ in list(self._iterations)[1:]) >= _WINDOW:
            self._iterations.popleft()

    def means(self) -> tuple[float | None, float | None]:
        """Of return and length; None before the first episode has ended."""
        count = sum(c for c, _, _ in self._iterations)
        if not count:
            return None, None
        returns = sum(r for _, r, _ in self._iterations)
        return returns / count, sum(n for _, _, n in self._iterations) / count

    def state_dict(self) -> list[list[float]]:
        return [list(row) for row in self._iterations]

    def load_state_dict(self, state: list[list[float]]) -> None:
        self._iterations = deque((row[0], row[1], row[2]) for row in state)


class Progress:
    """Episodes and times of all GMIs, merged once an iteration. Collective."""

    def __init__(self) -> None:
        self._window = EpisodeWindow()

    def connect(self, group: Group) -> None:
        """Make the bucket; again after the group was re-formed."""
        self._bucket = group.bucket("progress", 4 + len(_PHASES), torch.float64)

    def agree(
        self, episodes: Sequence[tuple[float, float]], phases: Sequence[float], stop: bool
    ) -> Agreement:
        """Merge this GMI's finished episodes (return, length) and phase times with the others'."""
        returns, lengths = sum(r for r, _ in episodes), sum(n for _, n in episodes)
        mine = (float(stop), len(episodes), returns, lengths, *phases)
        self._bucket.buffer.copy_(torch.tensor(mine, dtype=torch.float64))
        rows = self._bucket.gather().tolist()
        stops, count, return_sum, length_sum = (sum(row[i] for row in rows) for i in range(4))
        self._window.add(count, return_sum, length_sum)
        return_mean, length_mean = self._window.means()
        seconds = [dict(zip(_PHASES, row[4:], strict=True)) for row in rows]
        metrics = {
            "return_mean": return_mean,
            "length_mean": length_mean,
            "episodes": int(count),
            **{f"{phase}_s": sum(s[phase] for s in seconds) / len(seconds) for phase in _PHASES},
        }
        return Agreement(bool(stops), return_mean, metrics, seconds)

    def state_dict(self) -> list[list[float]]:
        return self._window.state_dict()

    def load_state_dict(self, state: list[list[float]]) -> None:
        self._window.load_state_dict(state)


class MetricsLog:
    """One JSON line an iteration in `metrics.jsonl`, and the same numbers for TensorBoard.

    Where training goes on after `iteration`, the lines beyond it go: they will be made again. Its
    own line, `last`, is added if it is not there: the process that should have written it was
    killed.
    """

    def __init__(
        self, folder: Path, iteration: int = 0, last: dict[str, Any] | None = None
    ) -> None:
        path = folder / "metrics.jsonl"
        there = _keep_until(path, iteration) if path.exists() else 0
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (close)
        self._told = False
        purge = iteration + 1 if iteration else None
        self._board = SummaryWriter(str(folder / "tb"), purge_step=purge, flush_secs=30)
        if last is not None and there < last["iteration"] == iteration:
            self.write(last)

    def write(self, metrics: dict[str, Any]) -> str:
        """Append one iteration's metrics. The reason, once, if the disk does not take them:
        training is worth more than its log."""
        try:
            self._file.write(json.dumps(metrics) + "\n")
            iteration = metrics["iteration"]
            for key, value in metrics.items():
                if isinstance(value, (int, float)) and key != "iteration":
                    self._board.add_scalar(f"train/{key}", value, iteration)
        except OSError as error:
            told, self._told = self._told, True
            return "" if told else f"metrics are no longer written: {error}. Free some space."
        return ""

    def close(self) -> None:
        for part in (self._file, self._board):
            with contextlib.suppress(OSError):  # the disk may still be full
                part.close()


def _keep_until(path: Path, iteration: int) -> int:
    """Rewrite a metrics file without the lines after `iteration` and without a torn last line.

    The iteration of the last line that is left; 0 without one.
    """
    kept, last = [], 0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            number = json.loads(line)["iteration"]
            if number <= iteration:
                kept.append(line)
                last = number
        except (ValueError, KeyError, TypeError):
            continue
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in kept)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return last
