"""Defines what a hyper-parameter search asks for and is told: runs of trials, and their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

RunKey: TypeAlias = tuple[int, int]  # (trial, number of its run)
Values: TypeAlias = Mapping[str, Any]  # by dotted key of the config


@dataclass(frozen=True)
class TrialRun:
    """A piece of work: train a trial with some values up to a number of steps."""

    trial: int
    number: int  # of the trial's runs, from 0
    values: Values
    steps: int  # environment steps since the trial's beginning; the last iteration is finished
    start: RunKey | None = None  # whose checkpoint it goes on from; None: a new policy
    bracket: int = 0  # of HyperBand; the generation of a population

    @property
    def key(self) -> RunKey:
        return self.trial, self.number


class TrialAlgorithm(Protocol):
    """A search among trials, which is asked what to train next and told what came of it.

    Pure: one that was killed goes on from the scores on record. Of scores larger is better.
    """

    @property
    def done(self) -> bool:
        """Whether it asks for nothing any more, whatever it is told."""

    def ask(self) -> TrialRun | None:
        """The next run; None when it must be told of others first, and when it is done."""

    def tell(self, run: TrialRun, score: float | None) -> None:
        """Takes in how a run ended that was asked for; None: it failed."""

    @property
    def total(self) -> int:
        """How many runs it asks for at most."""

    def kept(self) -> set[RunKey]:
        """The runs, of those that have ended well, that another may go on from."""

    def best(self) -> RunKey | None:
        """The run with the highest score among those that trained longest; None without one."""


class TrialHistory:
    """The runs that were asked for, and the scores of those that ended well."""

    def __init__(self) -> None:
        self.runs: dict[RunKey, TrialRun] = {}
        self.scores: dict[RunKey, float] = {}

    def best(self) -> RunKey | None:
        """Of those that trained longest, which alone compare, the highest score and first trial."""
        runs, scores = self.runs, self.scores
        return max(scores, key=lambda key: (runs[key].steps, scores[key], -key[0]), default=None)

    def with_best(self, keys: set[RunKey]) -> set[RunKey]:
        """Those of `keys` that ended well, and the best."""
        best = self.best()
        return (keys & self.scores.keys()) | (set() if best is None else {best})
