"""What a tune found, put in order for people: one finding a candidate, failures, and the knees."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gmi_drl.placement import counted
from gmi_drl.selector.tune.answers import apart, combined
from gmi_drl.selector.tune.candidate import Ask, Candidate, Failed, Measured, Row
from gmi_drl.selector.tune.saturation import mem_bytes

if TYPE_CHECKING:
    from gmi_drl.selector.tune.candidate import Answer, Chosen

# What somebody takes who has measured nothing: the default of examples on cores, and that of most
# of Isaac Gym's tasks on GPUs.
PLAIN: Final = 64
_PLAIN_ON_GPU: Final = 4096
FLAT: Final = 0.05  # throughput that differs by less is called the same


@dataclass(frozen=True)
class Finding:
    """A candidate that ran, and what all its measurements together say."""

    candidate: Candidate
    measured: Measured

    @property
    def gib(self) -> float:
        """Memory of the fullest device, or of the host where a device is a group of cores."""
        return mem_bytes(self.measured) / 2**30


@dataclass(frozen=True)
class Failure:
    """A candidate that did not run, and why."""

    candidate: Candidate
    failed: Failed


@dataclass(frozen=True)
class Findings:
    """All that was measured. `rows` has every row of which anything ran or failed, in order."""

    rows: Mapping[Row, Sequence[Finding]]  # each by rising num_env
    failures: Sequence[Failure]
    chosen: Chosen | None
    seconds: float  # of training that was measured
    own: Candidate | None = None  # the config as it was given, if it left nothing open

    @cached_property
    def winner(self) -> Finding | None:
        """What was chosen; before that, the fastest."""
        return self._found(self.chosen.winner) if self.chosen else self.fastest

    @cached_property
    def runner_up(self) -> Finding | None:
        """The best that was not chosen."""
        return self._found(self.chosen.runner_up) if self.chosen else None

    @cached_property
    def fastest(self) -> Finding | None:
        """Of the highest throughput; not the winner if that was chosen by its return."""
        return max(self.all, key=lambda f: f.measured.steps_per_s, default=None)

    @cached_property
    def all(self) -> list[Finding]:
        """Row by row."""
        return [finding for its in self.rows.values() for finding in its]

    @cached_property
    def base(self) -> Finding | None:
        """What the choice is held against, see `base_name`; None where it was not measured.

        A plain start is, of the fewest GMIs, what lies nearest to the `num_env` of a user who does
        not tune, within a factor of two.
        """
        if (own := self._found(self.own)) is not None:
            return own
        first = next((its for its in self.rows.values() if its), None)
        if first is None:
            return None
        wanted = PLAIN if first[0].measured.device_bytes is None else _PLAIN_ON_GPU
        off = {f.candidate.num_env: abs(math.log2(f.candidate.num_env / wanted)) for f in first}
        nearest = min(first, key=lambda f: off[f.candidate.num_env])
        return nearest if off[nearest.candidate.num_env] <= 1 else None

    @property
    def base_name(self) -> str:
        """What `base` is."""
        own = self.base is not None and self.base.candidate == self.own
        return "config as given" if own else "plain start"

    def knee(self, row: Row) -> Finding | None:
        """The first of a row than which nothing larger in it is clearly faster.

        None where nothing larger was measured, so that nobody knows.
        """
        its = self.rows[row]
        for place, finding in enumerate(its[:-1], 1):
            later = max(f.measured.steps_per_s for f in its[place:])
            if finding.measured.steps_per_s >= (1 - FLAT) * later:
                return finding
        return None

    @cached_property
    def as_fast(self) -> list[Finding]:
        """Those beside the winner of which noise does not tell it."""
        if self.winner is None:
            return []
        its = self.winner.measured
        return [f for f in self.all if f is not self.winner and not apart(its, f.measured)]

    @cached_property
    def tried(self) -> int:
        """Candidates that were started, whatever became of them."""
        failed = {failure.candidate for failure in self.failures}
        return len(failed | {finding.candidate for finding in self.all})

    def _found(self, candidate: Candidate | None) -> Finding | None:
        return next((f for f in self.all if f.candidate == candidate), None)


def findings_of(
    profiles: Iterable[tuple[Ask, Answer]],
    chosen: Chosen | None = None,
    own: Candidate | None = None,
) -> Findings:
    """Put answers in order; several of one candidate become one.

    One that failed when it was asked for again is a failure, as in the search; one that was slow
    with less time than it has been measured in is none.
    """
    measured: dict[Candidate, list[Measured]] = {}
    failures: dict[Candidate, Failure] = {}
    seen: dict[Row, None] = {}
    for ask, answer in profiles:
        candidate = ask.candidate
        if isinstance(answer, Measured):
            measured.setdefault(candidate, []).append(answer)
            failures.pop(candidate, None)
        elif isinstance(answer, Failed):
            if answer.reason == "slow" and candidate in measured:
                continue  # for the little time that was left
            failures[candidate] = Failure(candidate, answer)
        else:
            continue
        seen[candidate.row] = None
    rows = {
        row: [
            Finding(candidate, combined(answers))
            for candidate, answers in sorted(measured.items(), key=lambda item: item[0].num_env)
            if candidate.row == row and candidate not in failures
        ]
        for row in sorted(seen, key=row_order)
    }
    seconds = sum(answer.seconds for answers in measured.values() for answer in answers)
    failed = sorted(failures.values(), key=lambda f: _place(f.candidate))
    return Findings(rows, failed, chosen, seconds, own)


def told_apart(findings: Findings) -> list[tuple[str, Finding]]:
    """Winner, runner-up and what they are held against, each once."""
    named = [
        ("winner", findings.winner), ("runner-up", findings.runner_up),
        (findings.base_name, findings.base),
    ]  # fmt: skip
    found: dict[Candidate, tuple[str, Finding]] = {}
    for name, finding in named:
        if finding is not None:
            before = found.get(finding.candidate)
            found[finding.candidate] = (f"{before[0]}, {name}" if before else name, finding)
    return list(found.values())


def row_text(row: Row, rows: Collection[Row]) -> str:
    """A row in words: the number of GMIs, and what tells it from `rows` with as many."""
    return ", ".join([count_text(row), *marks_of(row, rows)])


def count_text(row: Row) -> str:
    """1 GMI, 2 GMIs."""
    return counted(row.gmi_per_gpu, "GMI")


def marks_of(row: Row, rows: Collection[Row]) -> list[str]:
    """What tells a row from those of `rows` with as many GMIs."""
    parts = []
    if len({other.backend for other in rows if other.gmi_per_gpu == row.gmi_per_gpu}) > 1:
        parts.append(row.backend)
    if row.percents is not None:
        parts.append(f"{':'.join(map(str, row.percents))} % of SMs")
    if row.sm_overcommit != 1.0:
        parts.append(f"SMs {row.sm_overcommit:g}x")
    return parts


def candidate_text(candidate: Candidate, rows: Collection[Row]) -> str:
    """A candidate in words."""
    return f"{row_text(candidate.row, rows)}, num_env {candidate.num_env:,}"


def _place(candidate: Candidate) -> tuple[object, ...]:
    return *row_order(candidate.row), candidate.num_env


def row_order(row: Row) -> tuple[int, str, float, tuple[int, ...]]:
    """By number of GMIs, then by what they get: rows without percents compare too."""
    return row.gmi_per_gpu, row.backend, row.sm_overcommit, row.percents or ()
