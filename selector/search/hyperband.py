"""Searches by HyperBand (Li et al., JMLR 2018): successive halving, hedged by brackets.

Of each rung of a bracket the best one in eta trains on, eta times as long. How few steps tell good
from bad is not known, so there are brackets from many short trials to a few that train to the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .ranges import Ranges
from .trial_run import RunKey, TrialHistory, TrialRun

_SHORTEST: Final = 3  # by default the shortest rung is eta to this power shorter than the longest


@dataclass(frozen=True)
class Rung:
    """So many trials, each trained up to so many steps."""

    trials: int
    steps: int


def brackets_of(total_steps: int, min_steps: int | None, eta: int) -> list[tuple[Rung, ...]]:
    """The rungs of all brackets, that with the most trials first.

    With R = `total_steps` over `min_steps`, s_max = floor(log_eta R), and bracket s has n =
    ceil((s_max + 1) / (s + 1) * eta^s) trials (line 2 of Algorithm 1, where B = (s_max + 1) R);
    rung i keeps floor(n eta^-i) of them up to `total_steps` * eta^(i - s) steps. The paper's Table
    1 has fewer trials, floor((s_max + 1) / (s + 1)) * eta^s, and leaves a part of B unused; we keep
    to the algorithm. `min_steps` None: a rung of `total_steps` / eta^3.
    """
    s_max = 0
    if min_steps is None:
        while s_max < _SHORTEST and eta ** (s_max + 1) <= total_steps:
            s_max += 1
    else:
        while min_steps * eta ** (s_max + 1) <= total_steps:  # a logarithm would be rounded
            s_max += 1
    brackets = []
    for s in range(s_max, -1, -1):
        n = -(-(s_max + 1) * eta**s // (s + 1))
        steps = [max(1, round(total_steps / eta ** (s - i))) for i in range(s + 1)]
        brackets.append(tuple(Rung(n // eta**i, steps[i]) for i in range(s + 1)))
    return brackets


@dataclass
class _Bracket:
    """Where one bracket stands."""

    number: int
    rungs: tuple[Rung, ...]
    members: list[int]  # trials of the present rung, the best of the one before first
    rung: int = 0
    asked: int = 0  # of the members
    scores: dict[int, float | None] = field(default_factory=dict)  # of the members

    @property
    def done(self) -> bool:
        return self.rung == len(self.rungs) or not self.members

    def close_rung(self) -> None:
        """Let the best train on; those that failed never do."""
        survivors = [trial for trial in self.members if self.scores[trial] is not None]
        survivors.sort(key=lambda trial: (-(self.scores[trial] or 0.0), trial))
        self.rung += 1
        room = self.rungs[self.rung].trials if self.rung < len(self.rungs) else 0
        self.members, self.asked, self.scores = survivors[:room], 0, {}


class HyperBand:
    """A `TrialAlgorithm`. Trials are numbered through all brackets in their order.

    Rungs wait for all of their trials, so that the order of scores changes nothing. Meanwhile the
    next bracket begins.
    """

    def __init__(
        self,
        ranges: Ranges,
        total_steps: int,
        min_steps: int | None = None,
        eta: int = 3,
        brackets: int | None = None,
    ) -> None:
        self._ranges = ranges
        self._brackets: list[_Bracket] = []
        first = 0
        for number, rungs in enumerate(brackets_of(total_steps, min_steps, eta)[:brackets]):
            trials = list(range(first, first + rungs[0].trials))
            self._brackets.append(_Bracket(number, rungs, trials))
            first += len(trials)
        self._history = TrialHistory()

    @property
    def total(self) -> int:
        return sum(rung.trials for bracket in self._brackets for rung in bracket.rungs)

    @property
    def done(self) -> bool:
        return all(bracket.done for bracket in self._brackets)

    def ask(self) -> TrialRun | None:
        for bracket in self._brackets:
            if bracket.done or bracket.asked == len(bracket.members):
                continue
            trial = bracket.members[bracket.asked]
            bracket.asked += 1
            before = self._history.runs.get((trial, bracket.rung - 1))
            run = TrialRun(
                trial=trial,
                number=bracket.rung,
                values=self._ranges.draw(trial) if before is None else before.values,
                steps=bracket.rungs[bracket.rung].steps,
                start=None if before is None else before.key,
                bracket=bracket.number,
            )
            self._history.runs[run.key] = run
            return run
        return None

    def tell(self, run: TrialRun, score: float | None) -> None:
        bracket = self._brackets[run.bracket]
        assert run.number == bracket.rung, f"{run.key} is of a rung that is over"
        bracket.scores[run.trial] = score
        if score is not None:
            self._history.scores[run.key] = score
        if len(bracket.scores) == len(bracket.members):
            bracket.close_rung()

    def kept(self) -> set[RunKey]:
        return self._history.with_best(
            {
                (trial, number)
                for bracket in self._brackets
                for trial in bracket.members
                for number in (bracket.rung - 1, bracket.rung)
            }
        )

    def best(self) -> RunKey | None:
        return self._history.best()
