"""Puts what a tune measured in order: one result a candidate, failures, and the knees."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gmi_drl.selector.tune.algorithms.observations import combined, differ_significantly, mem_bytes
from gmi_drl.selector.tune.candidate import Candidate, DeviceSplit, Failed, Measured
from gmi_drl.selector.tune.efficiency import Prediction

if TYPE_CHECKING:
    from gmi_drl.selector.tune.candidate import Ask, Chosen

# What somebody takes who has measured nothing: the default of examples on cores, and that of most
# of Isaac Gym's tasks on GPUs.
PLAIN: Final = 64
PLAIN_ON_GPU: Final = 4096
FLAT: Final = 0.05  # throughput that differs by less is called the same


@dataclass(frozen=True)
class CandidateResult:
    """Holds a candidate that ran, and all its measurements as one."""

    candidate: Candidate
    measured: Measured

    @property
    def gib(self) -> float:
        """Returns memory of the fullest device, or the host's where devices are groups of cores."""
        return mem_bytes(self.measured) / 2**30


@dataclass(frozen=True)
class TuneResults:
    """Holds all measurements. `rows` has every row of which anything ran or failed, in order."""

    rows: Mapping[DeviceSplit, Sequence[CandidateResult]]  # each by rising num_env
    failures: Mapping[Candidate, Failed]  # by row and num_env
    chosen: Chosen | None
    own: Candidate | None = None  # the config as it was given, if it left nothing open
    prediction: Prediction | None = None  # of what a step is worth; None: they are alike

    def worth(self, result: CandidateResult) -> Measured:
        """Returns the measurement of a result, with its goodput in place of its throughput."""
        if self.prediction is None:
            return result.measured
        measured, candidate = result.measured, result.candidate
        rate = self.prediction.goodput(measured.steps_per_s, candidate.samples, candidate.horizon)
        return replace(measured, steps_per_s=rate)

    @cached_property
    def winner(self) -> CandidateResult | None:
        """Returns what was chosen; before that, the fastest."""
        return self._result(self.chosen.winner) if self.chosen else self.fastest

    @cached_property
    def runner_up(self) -> CandidateResult | None:
        """Returns the best that was not chosen."""
        return self._result(self.chosen.runner_up) if self.chosen else None

    @cached_property
    def fastest(self) -> CandidateResult | None:
        """Returns what has the highest throughput, not the winner if its return decided."""
        return max(self.all, key=lambda f: f.measured.steps_per_s, default=None)

    @cached_property
    def all(self) -> list[CandidateResult]:
        """Lists all that ran, row by row."""
        return [result for row in self.rows.values() for result in row]

    @cached_property
    def base(self) -> CandidateResult | None:
        """Returns what the choice is held against, see `base_name`; None if it was not measured."""
        if (own := self._result(self.own)) is not None:
            return own
        row = next((row for row in self.rows.values() if row), None)
        if row is None:
            return None
        plain = PLAIN if row[0].measured.device_bytes is None else PLAIN_ON_GPU
        distance = {f.candidate.num_env: abs(math.log2(f.candidate.num_env / plain)) for f in row}
        nearest = min(row, key=lambda f: distance[f.candidate.num_env])
        return nearest if distance[nearest.candidate.num_env] <= 1 else None

    @property
    def base_name(self) -> str:
        """Names what `base` is."""
        own = self.base is not None and self.base.candidate == self.own
        return "config as given" if own else "plain start"

    def knee(self, row: DeviceSplit) -> CandidateResult | None:
        """Returns the first of a row that nothing larger clearly outruns; None for the last."""
        results = self.rows[row]
        for place, result in enumerate(results[:-1], 1):
            later = max(other.measured.steps_per_s for other in results[place:])
            if result.measured.steps_per_s >= (1 - FLAT) * later:
                return result
        return None

    @cached_property
    def as_fast(self) -> list[CandidateResult]:
        """Returns those whose worth differs from the winner's by no more than noise."""
        if self.winner is None:
            return []
        most, others = self.worth(self.winner), [r for r in self.all if r is not self.winner]
        return [other for other in others if not differ_significantly(most, self.worth(other))]

    @cached_property
    def tried(self) -> int:
        """Counts the candidates that were started, whatever became of them."""
        return len(self.failures.keys() | {result.candidate for result in self.all})

    def _result(self, candidate: Candidate | None) -> CandidateResult | None:
        return next((result for result in self.all if result.candidate == candidate), None)


def results_of(
    profiles: Iterable[tuple[Ask, Measured | Failed]],
    chosen: Chosen | None = None,
    own: Candidate | None = None,
    prediction: Prediction | None = None,
) -> TuneResults:
    """Puts answers in order; several of one candidate become one, as in the search.

    A candidate that failed when it was measured again is a failure, unless it was only too slow for
    the time that was left.
    """
    measured: dict[Candidate, list[Measured]] = {}
    failures: dict[Candidate, Failed] = {}
    seen: dict[DeviceSplit, None] = {}
    for ask, answer in profiles:
        candidate = ask.candidate
        if isinstance(answer, Measured):
            measured.setdefault(candidate, []).append(answer)
            failures.pop(candidate, None)
        elif answer.reason != "slow" or candidate not in measured:  # or for too little time
            failures[candidate] = answer
        seen[candidate.row] = None
    rows = {
        row: [
            CandidateResult(candidate, combined(answers))
            for candidate, answers in sorted(measured.items(), key=lambda item: item[0].num_env)
            if candidate.row == row and candidate not in failures
        ]
        for row in sorted(seen, key=row_order)
    }
    ordered = sorted(failures, key=lambda c: (row_order(c.row), c.num_env))
    return TuneResults(rows, {c: failures[c] for c in ordered}, chosen, own, prediction)


def row_order(row: DeviceSplit) -> tuple[int, str, float, tuple[int, ...], bool]:
    """Sorts by number of GMIs, then by what they get: rows without percents compare too."""
    return row.gmi_per_gpu, row.backend, row.sm_overcommit, row.percents or (), row.grown


def compared(results: TuneResults) -> list[tuple[str, CandidateResult]]:
    """Returns winner, runner-up and what they are held against, each once."""
    shown = (results.winner, results.runner_up, results.base)
    by_candidate: dict[Candidate, tuple[str, CandidateResult]] = {}
    for name, result in zip(("winner", "runner-up", results.base_name), shown, strict=True):
        if result is not None:
            entry = by_candidate.get(result.candidate)
            by_candidate[result.candidate] = (f"{entry[0]}, {name}" if entry else name, result)
    return list(by_candidate.values())
