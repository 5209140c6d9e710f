"""Holds the answers that a search has had, and what follows: estimates, bounds, what is barred."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gmi_drl.selector.tune.candidate import (
    Answer,
    Ask,
    Candidate,
    Chosen,
    Failed,
    Measured,
    Skipped,
    Space,
    candidate_text,
)


@dataclass(frozen=True)
class Point:
    """Holds one measured place on a row's curve."""

    num_env: int
    steps_per_s: float
    memory: float = 0.0  # share of the fullest memory


def mem_bytes(measured: Measured) -> int:
    """Returns the memory that Sat is about: the device's, the host's on groups of cores."""
    return measured.host_bytes if measured.device_bytes is None else measured.device_bytes


def sat(before: Measured, after: Measured) -> float:
    """Algorithm 2, line 17: (d_perf / last_perf) / (d_mem / last_mem).

    Memory that does not grow, as that of a caching allocator, costs nothing: infinite while
    throughput rises, and its loss in percent of itself when it falls. Infinite from nothing too.
    """
    if before.steps_per_s <= 0:
        return math.inf if after.steps_per_s > 0 else 0.0
    gain = after.steps_per_s / before.steps_per_s - 1
    last, now = mem_bytes(before), mem_bytes(after)
    if now <= last:
        return math.inf if gain > 0 else gain
    return gain / (now / last - 1) if last > 0 else 0.0


def project_memory(points: Sequence[Point], num_env: int) -> float | None:
    """ATC 2025: m_p = (e - e2) / (e2 - e1) (m2 - m1) + m2, from the two points nearest to e.

    One on each side of e where there are; None from fewer than two points. Memory that was measured
    to shrink is taken as flat.
    """
    if len(points) < 2:
        return None
    below = sum(point.num_env < num_env for point in points)
    index = min(max(below - 1, 0), len(points) - 2)
    left, right = points[index], points[index + 1]
    slope = max((right.memory - left.memory) / (right.num_env - left.num_env), 0.0)
    return slope * (num_env - right.num_env) + right.memory


def throughput_bound(points: Sequence[Point], num_env: int, error: float = 0.0) -> float:
    """Bounds the steps/s that a row may give at `num_env`, from its measured points (one or more).

    One step of all environments takes t(n) = n / steps_per_s(n): a fixed part, and a part for each
    environment that does not get less when there are more of them, so that t bends upward only and
    lies above each line through two measured points, outside of these. To the left of a single
    point anything is possible. Where the line through the next two on the right does not pass
    clearly (2 x `error`) below the last on the left, there may be a cliff, and it says nothing of
    what is before that.
    """
    times = [(p.num_env, p.num_env / p.steps_per_s) for p in points]
    left = [point for point in times if point[0] < num_env]
    right = [point for point in times if point[0] > num_env]
    bounds = [_line(left[-2], left[-1], num_env)] if len(left) >= 2 else [t for _, t in left]
    if len(right) >= 2:
        bends = not left or _line(right[0], right[1], left[-1][0]) < left[-1][1] * (1 - 2 * error)
        if bends:
            bounds.append(_line(right[0], right[1], num_env))
    limit = max(bounds, default=0.0)
    return num_env / limit if limit > 0 else math.inf


def _line(one: tuple[int, float], two: tuple[int, float], num_env: int) -> float:
    (e1, t1), (e2, t2) = one, two
    slope = max((t2 - t1) / (e2 - e1), 0.0)
    return t2 + slope * (num_env - e2)


FULL: Final = 0.95  # of the memory: what is projected to fill more is not tried, nor chosen
ITERATIONS: Final = 3  # that have to fit in the seconds of a profile
SAME: Final = 0.01  # candidates further apart than this in steps/s are not alike
DOUBT: Final = 2.0  # standard errors: what differs by less is within the noise
_NEAR: Final = 1.25  # times the num_env of the point before: lines through nearer ones say nothing
_LEAST_ERROR: Final = 0.002  # relative: nothing is known better than this
_MOST_ERROR: Final = 1.0  # and nothing counts for less than an answer that may be anything
_UNCERTAIN: Final = 0.1  # relative error above which a measurement decides nothing
_SHORT_S: Final = 1.0  # of training; less does not show how a machine varies


def _inverse_variance(answer: Measured) -> float:
    """Returns how much an answer counts beside others: 1 / error^2."""
    return 1 / min(max(answer.error, _LEAST_ERROR), _MOST_ERROR) ** 2


def _weighted_rate(answers: Sequence[Measured]) -> tuple[float, float]:
    """Returns the weighted mean steps/s of answers, and its relative standard error."""
    weights = [_inverse_variance(answer) for answer in answers]
    total = sum(w * answer.steps_per_s for w, answer in zip(weights, answers, strict=True))
    return total / sum(weights), 1 / math.sqrt(math.fsum(weights))


def combined(answers: Sequence[Measured]) -> Measured:
    """Returns several measurements as one, by 1 / error^2; memory is the most that was seen."""
    if len(answers) == 1:
        return answers[0]
    rate, error = _weighted_rate(answers)
    devices = [a.device_bytes for a in answers if a.device_bytes is not None]
    return replace(
        max(answers, key=lambda a: a.seconds), steps_per_s=rate, error=error,
        iterations=sum(a.iterations for a in answers), seconds=sum(a.seconds for a in answers),
        host_bytes=max(a.host_bytes for a in answers), device_bytes=max(devices, default=None),
        memory=max(a.memory for a in answers),
    )  # fmt: skip


def noise_margin(one: Measured, other: Measured) -> float:
    """Returns the difference of two in steps/s that noise explains."""
    return DOUBT * math.hypot(one.error * one.steps_per_s, other.error * other.steps_per_s)


def differ_significantly(one: Measured, other: Measured) -> bool:
    """Tells whether they differ by more than noise explains."""
    return abs(one.steps_per_s - other.steps_per_s) > noise_margin(one, other)


def is_uncertain(measured: Measured) -> bool:
    """Tells whether it was measured too short, or with too much noise, to decide by."""
    return measured.error > _UNCERTAIN or measured.seconds < _SHORT_S


def usable(
    measured: Mapping[Candidate, Measured], failed: Collection[Candidate]
) -> list[Candidate]:
    """Lists those measured, not failed since, with memory left for a long run, else all."""
    ran = [candidate for candidate in measured if candidate not in failed]
    return [candidate for candidate in ran if measured[candidate].memory <= FULL] or ran


class SearchEnded(Exception):
    """The search is to return what it knows: the budget is spent, or it used its profiles."""

    def __init__(self, complete: bool) -> None:
        super().__init__(complete)
        self.complete = complete


class Observations:
    """The answers so far. Nothing wins over `own`, the config as given, within the noise.

    `efficiency`: what a step of a candidate is worth. Every rate is then a goodput: its steps/s
    times that.
    """

    def __init__(
        self, space: Space, longest_s: float, own: Candidate | None = None,
        efficiency: Callable[[Candidate], float] | None = None,
    ) -> None:  # fmt: skip
        self.rows, self.longest_s, self.own, self.asked = space.rows, longest_s, own, 0
        self.unit = "steps/s" if efficiency is None else "steps/s of goodput"
        self._efficiency = efficiency or (lambda _: 1.0)
        self._answers: dict[Candidate, list[Measured]] = {}
        self._failed: dict[Candidate, Failed] = {}
        self._splits = space.splits
        self._number = {split: number for number, split in enumerate(self._splits)}
        # What is looked up many times between two answers, by row.
        self._places: dict[int, list[int]] = {}
        self._points: dict[int, list[Point]] = {}
        self._top: dict[int, int] = {}
        self._best: dict[int | None, Candidate | None] = {}

    def add(self, ask: Ask, answer: Answer) -> None:
        """Notes an answer. SearchEnded where the budget is spent."""
        if answer is None:
            raise SearchEnded(complete=False)
        self.asked += 1
        for cache in (self._places, self._points, self._top, self._best):
            cache.clear()
        if isinstance(answer, Failed):
            self._failed[ask.candidate] = answer
        elif answer.steps_per_s > 0:
            rate = answer.steps_per_s * self._efficiency(ask.candidate)
            worth = replace(answer, steps_per_s=rate)
            self._answers.setdefault(ask.candidate, []).append(worth)
        else:
            self._failed[ask.candidate] = Failed("hang", f"{answer.steps_per_s} steps/s")

    def is_done(self, candidate: Candidate) -> bool:
        """Tells whether there is an answer for it."""
        return candidate in self._answers or candidate in self._failed

    def row_of(self, candidate: Candidate) -> int:
        """Returns the number of its row."""
        return self._number[candidate.row]

    def failed_in(self, row: int) -> bool:
        """Tells whether one of a row failed."""
        return any(self.row_of(candidate) == row for candidate in self._failed)

    def measured_in(self, row: int) -> list[int]:
        """Returns the places in a row that were measured and did not fail later, rising."""
        if row not in self._places:
            ran = {c for c in self._answers if c not in self._failed and self.row_of(c) == row}
            self._places[row] = [i for i, c in enumerate(self.rows[row]) if c in ran]
        return self._places[row]

    def usable(self) -> list[Candidate]:
        """Lists those measured that leave some memory free, for a run that takes long, else all."""
        latest = {candidate: answers[-1] for candidate, answers in self._answers.items()}
        return usable(latest, self._failed)

    def latest(self, candidate: Candidate) -> Measured:
        """Returns the latest answer for it."""
        return self._answers[candidate][-1]

    def steps_per_s(self, candidate: Candidate) -> float:
        """Returns the combined estimate."""
        return _weighted_rate(self._answers[candidate])[0]

    def error(self, candidate: Candidate) -> float:
        """Returns the relative standard error of the combined estimate."""
        return _weighted_rate(self._answers[candidate])[1]

    def noise(self) -> float:
        """Returns the relative error of a second of measuring, root mean square of all answers."""
        every = [answer for answers in self._answers.values() for answer in answers]
        squares = [max(answer.seconds, 0.0) / _inverse_variance(answer) for answer in every]
        return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0

    def points(self, row: int) -> list[Point]:
        """Lists the measured points of a row, rising, without near ones, whose noise is larger."""
        if row not in self._points:
            points: list[Point] = []
            for candidate in (self.rows[row][i] for i in self.measured_in(row)):
                if not points or candidate.num_env >= points[-1].num_env * _NEAR:
                    memory = self.latest(candidate).memory
                    points.append(Point(candidate.num_env, self.steps_per_s(candidate), memory))
            self._points[row] = points
        return self._points[row]

    def best(self, row: int | None = None) -> Candidate | None:
        """Finds the one with the most steps/s, of a row or of all; None if nothing was measured."""
        if row not in self._best:
            candidates = [c for c in self.usable() if row is None or self.row_of(c) == row]
            self._best[row] = max(candidates, key=self._rank, default=None)
        return self._best[row]

    def barred(self, candidate: Candidate) -> str | None:
        """Says why it is not to be measured: end of its row, memory, time. None: it may be."""
        if own_failure := self._failed.get(candidate):
            return f"failed ({own_failure.reason}): {own_failure.text}"
        for other, failure in self._failed.items():
            ends = other.row == candidate.row and failure.reason != "refused"
            # More GMIs take no less memory.
            ends |= failure.reason == "memory" and (
                candidate.row.backend == other.row.backend
                and candidate.row.gmi_per_gpu >= other.row.gmi_per_gpu
            )
            if ends and other.num_env <= candidate.num_env:
                text = f"{other.row.gmi_per_gpu} x {other.num_env:,} environments"
                return f"{text} failed already ({failure.reason})"
        if candidate in self._answers:
            return None
        memory = self.memory(candidate)
        if memory > FULL:
            return f"memory would be {memory:.0%} full"
        seconds = self.needs_s(candidate)
        if seconds > self.longest_s:
            return f"{ITERATIONS} iterations would take {seconds:.0f} s"
        return None

    def memory(self, candidate: Candidate) -> float:
        """Returns the share of the memory it is projected to fill; 0 where nothing is known.

        By its row, where that has two points. Else as in the row with the nearest number of GMIs,
        for each GMI; by the one point of its row, and what more environments took in the other.
        """
        row, count = self.row_of(candidate), candidate.row.gmi_per_gpu
        points = self.points(row)
        memory = project_memory(points, candidate.num_env)
        if memory is not None:
            return memory
        rows = [r for r in range(len(self.rows)) if len(self.measured_in(r)) >= 2]
        near = min(rows, key=lambda r: abs(self._splits[r].gmi_per_gpu - count), default=None)
        if near is None:
            return 0.0
        ratio = count / self._splits[near].gmi_per_gpu
        sizes = [candidate.num_env, *(point.num_env for point in points)]
        projections = [(project_memory(self.points(near), n) or 0.0) * ratio for n in sizes]
        return points[0].memory + projections[0] - projections[1] if points else projections[0]

    def needs_s(self, candidate: Candidate) -> float:
        """Bounds the seconds that ITERATIONS of it take, by its row, or by the best of others."""
        points = self.points(self.row_of(candidate))
        best = self.best()
        if best is None:
            return 0.0
        rate = throughput_bound(points, candidate.num_env) if points else math.inf
        if not math.isfinite(rate):
            rate = self.steps_per_s(best)
        return ITERATIONS * candidate.samples / (rate / self._efficiency(candidate))

    def top(self, row: int) -> int:
        """Counts those of a row, from its first, not barred by failures, memory or time."""
        if row not in self._top:
            self._top[row] = bisect_left(self.rows[row], True, key=self._stops)
        return self._top[row]

    def winner(self) -> Candidate | None:
        """Picks the config as given, or what is beyond the noise of it with the fewest samples."""
        best = self.best()
        if best is None:
            return None
        own = self.own
        if own in self.usable() and not differ_significantly(
            combined(self._answers[own]), combined(self._answers[best])
        ):
            return own
        # Smaller updates learn more of a sample; then less memory and fewer GMIs are better.
        return min(
            self._alike(best),
            key=lambda c: (
                c.samples, self.latest(c).memory, c.row.gmi_per_gpu, -self.steps_per_s(c)
            ),
        )  # fmt: skip

    def chosen(self, complete: bool, skipped: Sequence[Skipped]) -> Chosen:
        """Returns the choice. `skipped`: each candidate that was not measured."""
        best, winner = self.best(), self.winner()
        if best is None or winner is None:
            return Chosen(None, None, tuple(skipped), complete, "nothing could be measured")
        number = len(self.usable())
        runner_up = max((c for c in self.usable() if c != winner), key=self._rank, default=None)
        if winner == best:
            why = f"the most {self.unit} of {number} measured"
        elif winner == self.own:
            pair = [combined(self._answers[candidate]) for candidate in (winner, best)]
            margin = noise_margin(*pair) / self.steps_per_s(best)
            why = (
                f"it is the config as given, and of {number} measured none has more "
                f"{self.unit} beyond the noise of {margin:.0%}"
            )
        else:
            why = (
                f"the fewest samples between two updates of {len(self._alike(best))} that are "
                f"alike: up to {self.steps_per_s(best):,.0f} {self.unit}, within {SAME:.0%} and "
                "the noise"
            )
        faster = "".join(f"; {text}" for text in self._faster_texts(best))
        return Chosen(winner, runner_up, tuple(skipped), complete, f"{why}{faster}")

    def _stops(self, candidate: Candidate) -> bool:
        failed = self._failed.get(candidate)
        refused = failed is not None and failed.reason == "refused"
        return not refused and self.barred(candidate) is not None

    def _rank(self, candidate: Candidate) -> tuple[float, int]:
        return self.steps_per_s(candidate), -candidate.samples

    def _faster_texts(self, best: Candidate) -> list[str]:
        """Says who was faster than the best of the usable, and why it is none of these."""
        faster = [c for c in self._answers if self._rank(c) > self._rank(best)]
        return [
            f"{candidate_text(c, self._splits)} was faster and "
            + (
                f"failed when it was measured again ({self._failed[c].reason})"
                if c in self._failed
                else f"fills {self.latest(c).memory:.0%} of the memory"
            )
            for c in sorted(faster, key=self._rank, reverse=True)
        ]

    def _alike(self, best: Candidate) -> list[Candidate]:
        """Returns those that are as fast as the best, within the noise and SAME."""
        most, error = self.steps_per_s(best), self.error(best)
        return [
            c
            for c in self.usable()
            if self.steps_per_s(c) >= most * (1 - min(math.hypot(self.error(c), error), SAME))
        ]
