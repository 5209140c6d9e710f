"""Keeps what learning.py has measured: a JSON line for each tune, length and training run.

The first line holds the options that all of them were measured with. A file that was cut off within
a line continues after the last complete one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

GIVEN = "given"


@dataclass(frozen=True)
class TrainingRun:
    """One seed of a task, trained in one way."""

    task: str
    way: str
    seed: int
    shape: Mapping[str, int]  # gmi_per_gpu, num_env, horizon, minibatches, samples of an update
    steps: int
    seconds: float  # of training, by the run's own clock
    wall_s: float  # with start and end
    points: tuple[tuple[float, int, float], ...]  # seconds, steps, return of the last 100 episodes
    noise_scale: float | None  # samples: the median over the run; None: not measured
    ended_early: bool  # it reached a return that the target cannot exceed
    machine: str
    commit: str

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds

    @property
    def return_end(self) -> float | None:
        """Returns the return at its end; None if no episode has ended."""
        return self.points[-1][2] if self.points else None


@dataclass(frozen=True)
class TuneRun:
    """Holds what `tune` chose for a task in one way, and its cost."""

    task: str
    way: str
    config: Mapping[str, Any]  # resolved
    seconds: float  # of the clock, in total
    chosen: str  # for people
    prediction: Mapping[str, Any] | None  # the fields of a Prediction; None: it made none


@dataclass(frozen=True)
class Length:
    """Holds how many steps a way trains, so that it takes as long as the options allow."""

    task: str
    way: str
    total_steps: int
    steps_per_s: float  # of a short run, from which it is computed


_KINDS = {"run": TrainingRun, "tune": TuneRun, "length": Length}
Line = TrainingRun | TuneRun | Length


class RawFile:
    """The lines of a raw file, to which lines can be added."""

    def __init__(self, path: Path, options: Mapping[str, Any] | None = None) -> None:
        """Reads the file, or creates it.

        `options` are those of this measurement; None takes the file's own. SystemExit if the file
        has others, as its lines would not be comparable.
        """
        self.path = path
        self.lines: list[Line] = []
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        if complete != text and options is not None:  # without options nothing is added to it
            os.truncate(path, len(complete.encode()))
        header, *lines = [json.loads(line) for line in complete.splitlines()] or [None]
        if header is None:
            if options is None:
                raise SystemExit(
                    f"{path} has no measurements. Measure first: leave out --rows-only."
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"kind": "options", **options})
        elif options is not None and header != {"kind": "options", **options}:
            header.pop("kind", None)
            raise SystemExit(
                f"{path} was measured with {header}, this would be {dict(options)}, which cannot "
                "be compared. Give the same options, or another --raw."
            )
        self.options: dict[str, Any] = dict(options if options is not None else header)
        for line in lines:
            cls = _KINDS[line.pop("kind")]
            if cls is TrainingRun:
                line["points"] = tuple(map(tuple, line["points"]))
            self.lines.append(cls(**{field.name: line[field.name] for field in fields(cls)}))

    def add(self, line: Line) -> None:
        """Adds a line, which is on disk when this returns."""
        kind = next(name for name, line_type in _KINDS.items() if isinstance(line, line_type))
        self._append({"kind": kind, **asdict(line)})
        self.lines.append(line)

    @property
    def runs(self) -> list[TrainingRun]:
        """Lists the training runs."""
        return [line for line in self.lines if isinstance(line, TrainingRun)]

    def run(self, task: str, way: str, seed: int) -> TrainingRun | None:
        """Returns the training run of a seed, if it was measured."""
        runs = (run for run in self.runs if (run.task, run.way, run.seed) == (task, way, seed))
        return next(runs, None)

    def tune(self, task: str, way: str) -> TuneRun | None:
        """Returns what was tuned in this way, if it was."""
        tunes = (line for line in self.lines if isinstance(line, TuneRun))
        return next((tune for tune in tunes if (tune.task, tune.way) == (task, way)), None)

    def length(self, task: str, way: str) -> Length | None:
        """Returns how many steps a way trains, if that was measured."""
        lengths = (line for line in self.lines if isinstance(line, Length))
        return next((line for line in lengths if (line.task, line.way) == (task, way)), None)

    def _append(self, line: Mapping[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
