"""Watches over the head of a Ray cluster: without it hosts train on, but nothing starts anew.

Ray ends this program, and raylets, a minute after the head is gone, without a word of ours. One
that hung it had not noticed after 150 s (Ray 2.52, by SIGSTOP).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from gmi_drl.runtime.engines.ray.probe import probe

from .messages import SILENCE_S, HostLost

_ASK_S: Final = 1.0  # between two questions
_ANSWER_S: Final = 2.0  # for a connection to the head, and for a word of it
_RAY_S: Final = 60.0  # for the head to answer what Ray asks it

T = TypeVar("T")


class RayHead:
    """Tells whether the head of the cluster at `address` answers there."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._asked_s = float("-inf")
        self._silent_s: float | None = None  # since when it does not answer

    def answers(self) -> bool:
        """Tells whether it does now; waits for four seconds at most."""
        try:
            probe(self._address, _ANSWER_S)
        except OSError:
            return False
        return True

    def check(self) -> None:
        """Raises HostLost when the head has not answered for ten seconds; asks once a second."""
        if (begin_s := time.monotonic()) - self._asked_s > _ASK_S:
            self._silent_s = None if self.answers() else self._silent_s or begin_s
            self._asked_s = time.monotonic()
        if self._silent_s is not None and time.monotonic() - self._silent_s > SILENCE_S:
            raise self._loss(f"has not answered there for {SILENCE_S:g} s")

    def ask(self, question: Callable[[], T]) -> T:
        """Returns what a call of Ray's returns that waits for the head; HostLost if that is gone.

        Ray waits without a deadline. A thread does so, which is left when the head does not answer.
        """
        answer: Future[T] = Future()

        def call() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=call, name="head", daemon=True).start()
        deadline_s = time.monotonic() + _RAY_S
        while not wait([answer], _ASK_S).done:
            self.check()
            if time.monotonic() > deadline_s:
                raise self._loss(f"has not answered what Ray asked it for {_RAY_S:g} s")
        return answer.result()

    def _loss(self, what: str) -> HostLost:
        return HostLost(
            value=f"cluster.address={self._address}",
            rule=f"the head of the Ray cluster {what}",
            remedy="Start a cluster, and go on from the last checkpoint; --set "
            "cluster.address=... gives another address.",
        )

    def await_answer(self) -> None:
        """Returns when the head answers; HostLost if it does not within ten seconds."""
        self._asked_s = float("-inf")
        self.check()
        while self._silent_s is not None:
            time.sleep(_ASK_S)
            self.check()
