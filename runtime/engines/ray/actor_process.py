"""Connects the code that runs in an actor to the keeper: for records, and for the wish to stop."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import ray

from .keeper import KeeperClient

_STOP_POLL_S: Final = 0.1  # between two questions whether the launcher has asked for an end
_RECORDS_S: Final = 0.05  # for which records wait for others, to be sent with them


class ActorProcess:
    """Is the `worker.WorkerProcess` of an actor."""

    def __init__(self, keeper: KeeperClient, actor: str) -> None:
        self._keeper, self._actor = keeper, actor
        self._stop, self._looked_s = False, 0.0
        self._lock = threading.Lock()
        self._records: list[bytes] = []  # that were not sent yet
        self._sent: Any = None  # Ray's reference of the keeper's answer to those sent last

    def post_record(self, record: bytes) -> None:
        with self._lock:
            self._records.append(record)
            if len(self._records) > 1:
                return
        timer = threading.Timer(_RECORDS_S, self.send_records)
        timer.daemon = True
        timer.start()

    def send_records(self) -> Any:
        """Sends what was not sent; returns Ray's reference of its arrival, None if none ever was.

        A call is answered after that, so that its records are there when its result is: also those
        that another call of a concurrent actor has sent.
        """
        with self._lock:
            if self._records:
                self._sent = self._keeper.handle.emit.remote(self._actor, self._records)
                self._records = []
            return self._sent

    def stop_requested(self) -> bool:
        now_s = time.monotonic()
        if not self._stop and now_s - self._looked_s > _STOP_POLL_S:
            self._looked_s = now_s
            self._stop = bool(self._keeper.ask("stop_requested", self._actor))
        return self._stop

    def set_title(self, text: str) -> None:
        ray._raylet.setproctitle(f"gmi-drl: {text}")
