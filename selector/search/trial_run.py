"""Defines what a hyper-parameter search asks for and is told: runs of trials, and their scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

RunKey: TypeAlias = tuple[int, int]  # (trial, number of its run)
Values: TypeAlias = Mapping[str, Any]  # by dotted key of the config
Scores: TypeAlias = Mapping[int, float | None]  # by trial; None: its run failed


@dataclass(frozen=True)
class TrialRun:
    """Holds one piece of work: to train a trial with some values up to a number of steps."""

    trial: int
    number: int  # of the trial's runs, from 0
    values: Values
    steps: int  # environment steps since the trial's beginning; the last iteration is finished
    start: RunKey | None = None  # whose checkpoint it goes on from; None: a new policy
    bracket: int = 0  # of HyperBand; the generation of a population

    @property
    def key(self) -> RunKey:
        return self.trial, self.number


class TrialAlgorithm(ABC):
    """A search among trials, which is asked what to train next and told what came of it.

    Pure: one that was killed goes on from what it was asked and told, in that order.
    """

    def __init__(self, total: int) -> None:
        self.total = total  # runs that it asks for at most
        self._steps: dict[RunKey, int] = {}  # of all that were asked for
        self._scores: dict[RunKey, float] = {}  # of those that ended well

    @property
    @abstractmethod
    def done(self) -> bool:
        """Tells whether it asks for nothing any more, whatever it is told."""

    @abstractmethod
    def ask(self) -> TrialRun | None:
        """Returns the next run; None when it must be told of others first, and when it is done."""

    def tell(self, run: TrialRun, score: float | None) -> None:
        """Takes in how a run ended that was asked for; None: it failed."""
        if score is not None:
            self._scores[run.key] = score

    @abstractmethod
    def kept(self) -> set[RunKey]:
        """Returns the runs that ended well and that another may go on from, and the best."""

    def best(self) -> RunKey | None:
        """Returns the highest score, then first trial, of those that trained longest."""
        steps, scores = self._steps, self._scores
        return max(scores, key=lambda key: (steps[key], scores[key], -key[0]), default=None)


@dataclass(frozen=True)
class TrialRound:
    """Holds runs of some trials, which are compared when all have ended."""

    runs: list[TrialRun]
    best: int  # so many of the trials train on, at most


# Is sent the scores of a round when all are there; larger is better.
Rounds: TypeAlias = Generator[TrialRound, Scores, None]


@dataclass
class _Track:
    """Holds the present round of a generator of rounds; one without runs has come to its end."""

    rounds: Rounds
    round: TrialRound
    asked: int = 0
    scores: dict[int, float | None] = field(default_factory=dict)

    @property
    def runs(self) -> list[TrialRun]:
        return self.round.runs

    def kept(self) -> set[RunKey | None]:
        """Returns the runs that others may go on from: further scores only lower a rank."""
        best = ranked(self.scores)[: self.round.best]
        starts = {run.start for run in self.runs if run.trial not in self.scores}
        return starts | {run.key for run in self.runs if run.trial in best}


class InRounds(TrialAlgorithm):
    """Waits for all runs of a round, so that what it asks for depends on the scores alone.

    Not on the order in which they come. Meanwhile runs of the next of `rounds` are asked for, so
    that nothing idles.
    """

    def __init__(self, rounds: Iterable[Rounds], total: int) -> None:
        super().__init__(total)
        self._tracks = [_Track(generator, next(generator)) for generator in rounds]

    @property
    def done(self) -> bool:
        return not any(track.runs for track in self._tracks)

    def ask(self) -> TrialRun | None:
        for track in self._tracks:
            if track.asked < len(track.runs):
                run = track.runs[track.asked]
                track.asked += 1
                self._steps[run.key] = run.steps
                return run
        return None

    def tell(self, run: TrialRun, score: float | None) -> None:
        super().tell(run, score)
        track = next(track for track in self._tracks if run in track.runs)
        track.scores[run.trial] = score
        if len(track.scores) == len(track.runs):
            scores, track.scores, track.asked = track.scores, {}, 0
            try:
                track.round = track.rounds.send(scores)
            except StopIteration:
                track.round = TrialRound([], 0)

    def kept(self) -> set[RunKey]:
        keys = {self.best()}.union(*(track.kept() for track in self._tracks))
        return {key for key in keys if key in self._scores and key is not None}


def ranked(scores: Scores) -> list[int]:
    """Returns the trials that have not failed, the best first; of equals the first."""
    alive = {trial: score for trial, score in scores.items() if score is not None}
    return sorted(alive, key=lambda trial: (-alive[trial], trial))
