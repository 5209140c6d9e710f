"""The words of a hyper-parameter search: what it asks for, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Key: TypeAlias = tuple[int, int]  # (trial, number of its stint)
Values: TypeAlias = Mapping[str, Any]  # by dotted key of the config


@dataclass(frozen=True)
class Stint:
    """A piece of work: train a trial with some values up to a number of steps."""

    trial: int
    number: int  # of the trial's stints, from 0
    values: Values
    steps: int  # environment steps since the trial's beginning; the last iteration is finished
    start: Key | None = None  # whose checkpoint it goes on from; None: a new policy
    bracket: int = 0  # of HyperBand; the generation of a population

    @property
    def key(self) -> Key:
        return self.trial, self.number


class SearchAlgorithm(Protocol):
    """Which stints to train. Pure: it draws by its seed, and what it is told decides the rest.

    The same asks and tells in the same order lead to the same state, so that a search that was
    killed goes on from its record.
    """

    @property
    def total(self) -> int:
        """How many stints it asks for at most."""

    @property
    def done(self) -> bool:
        """Whether it asks for nothing any more, whatever it is told."""

    def ask(self) -> Stint | None:
        """The next stint; None when it must be told of others first, and when it is done."""

    def tell(self, key: Key, score: float | None) -> None:
        """How a stint that was asked for ended: larger is better; None if it failed."""

    def kept(self) -> set[Key]:
        """The stints, of those that have ended well, that another may go on from."""

    def best(self) -> Key | None:
        """The stint with the highest score among those that trained longest; None without one."""


@dataclass(frozen=True)
class Ended:
    """A stint that ended well."""

    stint: Stint
    score: float


def best_of(ended: Mapping[Key, Ended]) -> Key | None:
    """Of those that trained longest the highest score, of equals the first trial.

    A short stint's score says little of a long one's, so they are not compared.
    """
    if not ended:
        return None
    return max(ended, key=lambda key: (ended[key].stint.steps, ended[key].score, -key[0]))
