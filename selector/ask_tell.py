"""Declares the protocol of every search: it is asked what to try next, and told what came of it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, Protocol, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")
ResultT_contra = TypeVar("ResultT_contra", contravariant=True)
Choice = TypeVar("Choice")


class SearchAlgorithm(Protocol[Request, ResultT_contra]):
    """Decides what to try. Pure: the same results in the same order lead to the same requests.

    A search that was killed therefore goes on from the results on record.
    """

    @property
    def done(self) -> bool:
        """Whether it asks for nothing any more, whatever it is told."""

    def ask(self) -> Request | None:
        """The next request; None when it must be told of others first, and when it is done."""

    def tell(self, request: Request, result: ResultT_contra) -> None:
        """Takes in how a request ended that was asked for."""


class GeneratorSearch(Generic[Request, Result, Choice]):
    """A `SearchAlgorithm` written as a generator: it yields requests, and returns its choice.

    One request is open at a time, and `choice` is set when it is done.
    """

    def __init__(self, steps: Generator[Request, Result, Choice]) -> None:
        self._steps = steps
        self._open: Request | None = None
        self.choice: Choice | None = None
        self._advance(None)

    @property
    def done(self) -> bool:
        return self._open is None

    def ask(self) -> Request | None:
        return self._open

    def tell(self, request: Request, result: Result) -> None:
        assert request == self._open, f"{request} was not asked for"
        self._advance(result)

    def _advance(self, result: Result | None) -> None:
        try:
            self._open = next(self._steps) if result is None else self._steps.send(result)
        except StopIteration as end:
            self._open, self.choice = None, end.value
