"""Asks Ray which nodes it drains: those that are taken away soon, as spot instances are.

A thread asks, as an answer may take a while. Each question has a time-out: Ray ends a program that
has waited for a minute for a head that is gone.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any, Final

_ASK_S: Final = 1.0  # between two questions
_ANSWER_S: Final = 2.0  # for the answer to one
_END_S: Final = 5.0  # for an answer that is on its way
# What is raised where Ray has no such names or arguments.
_CHANGED: Final = (ImportError, AttributeError, TypeError)


class Drains:
    """Knows the nodes that are drained, as Ray has said last."""

    def __init__(self, address: str) -> None:
        """Asks the head at `address` once before it returns."""
        self.nodes: frozenset[str] = frozenset()  # their ids
        self._address, self._is_over = address, threading.Event()
        self._head: Any = None  # Ray's client of it
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
        try:
            # Ray Serve asks so, too: there is no public way.
            from ray._raylet import GcsClient
            from ray.core.generated.gcs_pb2 import GcsNodeInfo, NodeSnapshot

            self._head = self._head or GcsClient(address=self._address)
            self.nodes = frozenset(
                node.node_id.hex()
                for node in self._head.get_all_node_info(timeout=_ANSWER_S).values()
                if node.state == GcsNodeInfo.ALIVE
                and node.state_snapshot.state == NodeSnapshot.DRAINING
            )
        except _CHANGED as error:
            self._is_over.set()  # so that this is said once
            warnings.warn(
                f"this release of Ray does not say which hosts it drains ({error}): such a host "
                "counts as lost when it is gone. Use a release that gmi-drl was tested with.",
                stacklevel=2,
            )
        except Exception:  # the head is gone, which others find out
            pass
