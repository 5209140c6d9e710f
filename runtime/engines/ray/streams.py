"""Keeps how far a generator on Ray has been read."""

from __future__ import annotations

import threading
from typing import Any

from gmi_drl.runtime import ids


class GeneratorStream:
    """Ray's generator of one call; its results are numbered from 1, as they are taken."""

    def __init__(self, task: bytes, call: str, actor: str, generator: Any) -> None:
        self.task, self.call, self.actor, self.generator = task, call, actor, generator
        self.taken = 0
        self.ended = False
        self.lock = threading.RLock()

    @property
    def end(self) -> bytes:
        """Returns the id of its end, whose value is the number of results."""
        return ids.result(self.task)

    def items(self) -> list[bytes]:
        """Returns the ids of the results taken so far."""
        return [ids.result(self.task, number) for number in range(1, self.taken + 1)]

    def next(self) -> Any:
        """Returns Ray's reference of the next result, which is ready; None at the end.

        The last one raises the generator's exception, if there is one.
        """
        try:
            reference = next(self.generator)
        except StopIteration:
            self.ended = True
            return None
        self.taken += 1
        return reference
