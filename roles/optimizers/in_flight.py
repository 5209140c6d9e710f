"""Requests in flight: each evaluator has one, and the first answer is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class InFlight(Generic[Answer]):
    """Keeps one request in flight at each of several evaluators, wherever they are."""

    def __init__(
        self,
        idle: Callable[[], Iterable[int]],
        ask: Callable[[int], None],
        first: Callable[[], tuple[int, Answer] | None],
    ) -> None:
        """`idle` gives the evaluators without a request in flight, `ask` asks one of them.

        `first` waits and returns an evaluator and its answer; None where that is to be left out.
        """
        self._idle, self._ask, self._first = idle, ask, first
        self._began: dict[int, int] = {}  # by evaluator: the updates before it was asked

    def next(self, updates: int) -> tuple[int, Answer, int]:
        """Asks all that are idle, after so many updates of the policy, and waits for an answer.

        Returns the evaluator, its answer, and the lag: the updates since it was asked.
        """
        answered = None
        while answered is None:
            for number in self._idle():
                self._began[number] = updates
                self._ask(number)
            answered = self._first()
        number, answer = answered
        return number, answer, updates - self._began[number]
