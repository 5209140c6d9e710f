"""Tells hosts that the launching program is there, while it has nothing else to tell them.

Between the agents' start and the first order to a gang it plans, and tries the user's code, which
may take longer than the silence after which hosts end.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Collection
from typing import Any, Final

from .messages import BEAT_S, Orders

_BEAT_S: Final = 4 * BEAT_S


class Presence:
    """Speaks to agents until it is ended."""

    def __init__(self, agents: Collection[Any]) -> None:
        self._agents, self._is_over = list(agents), threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Speaks no more; returns at once."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        nothing = pickle.dumps(Orders())
        while not self._is_over.wait(_BEAT_S):
            for agent in self._agents:
                agent.tell.remote(nothing)  # whoever talks with it notices that it is gone
