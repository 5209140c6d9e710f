"""Searches by HyperBand (Li et al., JMLR 2018): successive halving, hedged by brackets.

Of each rung of a bracket the best one in eta trains on, eta times as long. How few steps tell good
from bad is not known, so there are brackets from many short trials to a few that train to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .ranges import Ranges
from .trial_run import InRounds, Rounds, TrialAlgorithm, TrialRound, TrialRun, ranked

_SHORTEST: Final = 3  # by default the shortest rung is eta to this power shorter than the longest


@dataclass(frozen=True)
class Rung:
    """Holds how many trials train, each up to how many steps."""

    trials: int
    steps: int


def brackets_of(total_steps: int, min_steps: int | None, eta: int) -> list[tuple[Rung, ...]]:
    """Returns the rungs of all brackets, that with the most trials first.

    With R = `total_steps` over `min_steps`, s_max = floor(log_eta R), and bracket s has n =
    ceil((s_max + 1) / (s + 1) * eta^s) trials (line 2 of Algorithm 1, where B = (s_max + 1) R);
    rung i keeps floor(n eta^-i) of them up to `total_steps` * eta^(i - s) steps. The paper's Table
    1 has fewer trials, floor((s_max + 1) / (s + 1)) * eta^s, and leaves a part of B unused; we keep
    to the algorithm. `min_steps` None: a rung of `total_steps` / eta^3.
    """
    s_max, least, most = 0, min_steps or 1, _SHORTEST if min_steps is None else total_steps
    while s_max < most and least * eta ** (s_max + 1) <= total_steps:  # logarithms are rounded
        s_max += 1
    brackets = []
    for s in range(s_max, -1, -1):
        n = -(-(s_max + 1) * eta**s // (s + 1))
        steps = [max(1, round(total_steps / eta ** (s - i))) for i in range(s + 1)]
        brackets.append(tuple(Rung(n // eta**i, steps[i]) for i in range(s + 1)))
    return brackets


def hyperband(
    ranges: Ranges,
    total_steps: int,
    min_steps: int | None = None,
    eta: int = 3,
    brackets: int | None = None,
) -> TrialAlgorithm:
    """Returns the search; trials are numbered through all brackets in their order."""
    all_rungs, first, rounds = brackets_of(total_steps, min_steps, eta)[:brackets], 0, []
    for number, rungs in enumerate(all_rungs):
        rounds.append(_bracket(ranges, number, rungs, first))
        first += rungs[0].trials
    return InRounds(rounds, sum(rung.trials for rungs in all_rungs for rung in rungs))


def _bracket(ranges: Ranges, number: int, rungs: tuple[Rung, ...], first: int) -> Rounds:
    """Returns the rungs of a bracket: the best train on, and those that failed never do."""
    values = {trial: ranges.draw(trial) for trial in range(first, first + rungs[0].trials)}
    members = list(values)
    for index, rung in enumerate(rungs):
        if not (members := members[: rung.trials]):
            return
        runs = [
            TrialRun(
                trial=trial, number=index, values=values[trial], steps=rung.steps,
                start=(trial, index - 1) if index else None, bracket=number,
            )
            for trial in members
        ]  # fmt: skip
        promoted = rungs[index + 1].trials if index + 1 < len(rungs) else 0
        members = ranked((yield TrialRound(runs, promoted)))
