"""Asks Ray which nodes it drains: those that are taken away soon, as spot instances are.

The question has no time-out of ours, and without a head Ray answers none: so a thread asks.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

_ASK_S: Final = 1.0  # between two questions
_END_S: Final = 2.0  # for an answer that is on its way


class Drains:
    """Knows the nodes that are drained, as Ray has said last."""

    def __init__(self) -> None:
        """Asks once before it returns."""
        self.nodes: frozenset[str] = frozenset()  # their ids
        self._is_over = threading.Event()
        self._ask()
        self._thread = threading.Thread(target=self._ask_on, name="drains", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Asks no more."""
        self._is_over.set()
        self._thread.join(_END_S)

    def _ask_on(self) -> None:
        while not self._is_over.wait(_ASK_S):
            self._ask()

    def _ask(self) -> None:
        from ray._private.state import state  # Ray Train asks so, too: there is no public way

        with suppress(Exception):  # the head is gone, which others find out
            self.nodes = frozenset(state.get_draining_nodes())
