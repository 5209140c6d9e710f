"""Progress of a run: merged by the GMIs that train, and written down by one of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import torch

from gmi_drl.comm import Group
from gmi_drl.placement import Layout, counted
from gmi_drl.roles.samples.episodes import WINDOW, RecentEpisodes, Seen
from gmi_drl.runtime.cache_files import replace_file

# What GMIs spend an iteration with: those that do all, and agents and trainers that are apart. An
# agent that samples in turn waits while its trainer trains, and the trainer while it samples.
TOGETHER: Final = ("simulate", "infer", "train", "reduce")
AGENTS: Final = ("simulate", "infer", "send", "wait")
TRAINERS: Final = ("wait", "train", "reduce")
# Of the episodes that ended, the seconds of phases, and which process of its GMI the worker is.
WORKER_STATS: Final = 3 + len(AGENTS) + 1


@dataclass(frozen=True)
class Agreement:
    """The facts that all GMIs that train know after an iteration."""

    stop: bool  # somebody was asked to
    metrics: dict[str, Any]  # to be written down; phases are means over the GMIs
    gmi_seconds: list[dict[str, float]]  # of each phase, of each GMI of the layout
    extra: list[list[float]]  # what each has told besides, by rank


class Progress:
    """Merges episodes and times of all GMIs once an iteration; collective among trainers."""

    def __init__(
        self, layout: Layout, agent_phases: Sequence[str] = AGENTS, extra: int = 0
    ) -> None:
        """`agent_phases` are those of agents apart; each GMI tells `extra` further numbers."""
        self._trainers = [gmi.gmi_id for gmi in layout.holding("trainer")]
        self._agents = [gmi.gmi_id for gmi in layout.gmis if gmi.gmi_id not in self._trainers]
        self._phases = TRAINERS if self._agents else TOGETHER
        self._agent_phases, self._extra = tuple(agent_phases), extra
        self._recent = RecentEpisodes()
        # Those that end first are the short ones.
        self._enough = max(WINDOW, sum(gmi.num_env for gmi in layout.gmis))
        self.wants_checkpoint: Callable[[], bool] = lambda: False  # is asked in each `agree`
        self.checkpoint_wanted = False  # by any GMI, at the last `agree`

    def connect(self, group: Group) -> None:
        """Makes the bucket; again after the group was re-formed."""
        numel = 5 + len(self._phases) + len(self._agent_phases) * len(self._agents) + self._extra
        self._bucket = group.bucket("progress", numel, torch.float64)

    @property
    def return_mean(self) -> float | None:
        """Returns the mean return of the last 100 episodes; None before the first one has ended."""
        return self._recent.means()[0]

    @property
    def has_seen_enough(self) -> bool:
        """Tells whether 100 episodes have ended, and as many as there are environments."""
        return self._recent.total >= self._enough

    def agree(
        self,
        seen: Seen,
        phases: Sequence[float],
        stop: bool,
        agents: Mapping[int, Sequence[float]] | None = None,
        extra: Sequence[float] = (),
    ) -> Agreement:
        """Merges the episodes and seconds of this GMI with those of the others.

        `phases` are the seconds of this GMI, as `TOGETHER` or `TRAINERS` names them; `agents` those
        of the agents that collected for it, by gmi_id.
        """
        numbers = [float(stop), float(self.wants_checkpoint()), *seen, *phases]
        for agent in self._agents:
            numbers += (agents or {}).get(agent, [0.0] * len(self._agent_phases))
        self._bucket.buffer.copy_(torch.tensor([*numbers, *extra], dtype=torch.float64))
        rows = self._bucket.gather().tolist()
        sums = [sum(column) for column in zip(*rows, strict=True)]
        self.checkpoint_wanted = bool(sums[1])
        self._recent.add(Seen(*sums[2:5]))
        return_mean, length_mean = self._recent.means()
        begin, width = 5 + len(self._phases), len(self._agent_phases)
        end = begin + width * len(self._agents)
        trainer_seconds = [dict(zip(self._phases, row[5:begin], strict=True)) for row in rows]
        agent_seconds = [
            dict(zip(self._agent_phases, sums[start : start + width], strict=True))
            for start in range(begin, end, width)
        ]
        metrics = {
            "return_mean": return_mean,
            "length_mean": length_mean,
            "episodes": int(sums[2]),
            **_means(agent_seconds),
            **_means(trainer_seconds),  # the last word: `wait` of a run is its trainers'
        }
        seconds = dict(zip(self._agents, agent_seconds, strict=True))
        seconds |= dict(zip(self._trainers, trainer_seconds, strict=True))
        gmi_seconds = [seconds[gmi_id] for gmi_id in sorted(seconds)]
        return Agreement(bool(sums[0]), metrics, gmi_seconds, [row[end:] for row in rows])

    def state_dict(self) -> dict[str, Any]:
        return self._recent.state_dict()

    def load_state_dict(self, state: dict[str, Any] | list[list[float]]) -> None:
        self._recent.load_state_dict(state)


def _means(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"{phase}_s": sum(s[phase] for s in seconds) / len(seconds) for phase in seconds[0]}


class MetricsLog:
    """One JSON line an iteration in `metrics.jsonl`.

    Where training goes on after `iteration`, the lines beyond it go: they will be made again. Its
    own line, `last`, is added if it is not there: the process that should have written it was
    killed. Lines that are no metrics go too. What cannot be opened is not written.
    """

    def __init__(
        self,
        folder: Path,
        iteration: int,
        last: dict[str, Any] | None,
        warn: Callable[[str], object],
    ) -> None:
        """`warn` is told, once, that the disk does not take metrics: training is worth more."""
        self._file: TextIO | None = None
        self._warn, self._failed = warn, False
        try:
            self._open(folder, iteration, last)
        except OSError as error:
            self._fail(error)

    def _open(self, folder: Path, iteration: int, last: dict[str, Any] | None) -> None:
        path = folder / "metrics.jsonl"
        newest, damaged = _keep_until(path, iteration) if path.exists() else (0, 0)
        if damaged:
            self._warn(f"{path}: {counted(damaged, 'damaged line')} removed")
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (close)
        if last is not None and newest < last["iteration"] == iteration:
            self.write(last)

    def write(self, metrics: dict[str, Any]) -> None:
        """Appends one iteration's metrics."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(metrics) + "\n")
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._warn(f"metrics are no longer written: {error}. Free some space.")
        self._failed = True

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # the disk may still be full
                self._file.close()


def _keep_until(path: Path, iteration: int) -> tuple[int, int]:
    """Rewrites a metrics file without the lines after `iteration` and without damaged ones.

    Returns the iteration of the last line that is left, or 0, and how many lines were damaged. The
    last line does not count as damaged: a process that is killed leaves it torn.
    """
    kept, newest, damaged = [], 0, []
    lines = path.read_bytes().splitlines(keepends=True)
    for index, line in enumerate(lines):
        try:
            number = json.loads(line)["iteration"]
            is_kept = number <= iteration
        except (ValueError, KeyError, TypeError, RecursionError):
            damaged.append(index)
            continue
        if is_kept:
            kept.append(line if line.endswith(b"\n") else line + b"\n")
            newest = number
    if kept != lines:  # else nothing is written, as the disk may be full
        replace_file(path, b"".join(kept))
    return newest, len([index for index in damaged if index < len(lines) - 1])
