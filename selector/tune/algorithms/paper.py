"""Runs Algorithm 2 of GMI-DRL, workload-aware GMI selection, as printed where it can be."""

from __future__ import annotations

from functools import partial
from typing import Final

from gmi_drl.selector.tune.candidate import (
    Ask,
    Candidate,
    Chosen,
    Failed,
    Measure,
    Measured,
    Skipped,
    Space,
    TuneSearch,
)

from .observations import sat

ALPHA: Final = 0.1  # the paper: "typically below 0.1"


def paper(space: Space, seconds: float) -> TuneSearch:
    """Climbs each row from its fewest environments, until Sat is below ALPHA; the best of all."""
    return partial(_paper, space, seconds)


def _paper(space: Space, seconds: float, measure: Measure) -> Chosen:
    best_perf, best = 0.0, None  # line 1
    considered: dict[Candidate, float] = {}
    skipped: list[Skipped] = []
    for number, row in enumerate(space.rows):  # line 2
        last: Measured | None = None  # lines 3 and 4
        for index, candidate in enumerate(row):  # line 5
            curr = measure(Ask(candidate, seconds))  # line 9: of all GMIs together
            if curr is None:
                left = [c for later in space.rows[number + 1 :] for c in later]
                skipped += [Skipped(c, "the budget was spent") for c in [*row[index:], *left]]
                return _chosen(considered, best, skipped, complete=False)
            if isinstance(curr, Failed):  # lines 11 and 12
                # Deviation: the printed `continue` tries more environments, which fit still less:
                # a failed point ends its row. One that was refused says nothing of the next.
                if curr.reason == "refused":
                    continue
                skipped += _later(row, index, f"{candidate.num_env:,} failed ({curr.reason})")
                break
            # Deviation: at the first point of a row, lines 14 to 17 divide by last_perf = 0. There
            # is nothing to compare it with: it is never saturated. `sat` mends line 17 where
            # memory does not grow: then more throughput is worth having, less is not.
            if last is not None and sat(last, curr) < ALPHA:  # lines 14 to 19
                skipped += _later(row, index, f"saturated at {candidate.num_env:,}: Sat < {ALPHA}")
                break  # line 20: the saturated point itself is not considered
            # Deviation: line 22 multiplies one GMI's throughput by their number, as if they were
            # not in each other's way. Here all GMIs were measured together: it is their sum.
            est_perf = curr.steps_per_s  # line 22
            considered[candidate] = est_perf
            if est_perf > best_perf:  # lines 23 and 24
                best_perf, best = est_perf, candidate
            last = curr  # line 25
    return _chosen(considered, best, skipped, complete=True)  # lines 28 and 29


def _chosen(
    considered: dict[Candidate, float], best: Candidate | None, skipped: list[Skipped],
    complete: bool,
) -> Chosen:  # fmt: skip
    others = [c for c in considered if c != best]
    second = max(others, key=considered.__getitem__, default=None)
    why = "the most steps/s before saturation" if best else "nothing could be measured"
    return Chosen(best, second, tuple(skipped), complete, why)


def _later(row: tuple[Candidate, ...], index: int, why: str) -> list[Skipped]:
    return [Skipped(c, why) for c in row[index + 1 :]]
