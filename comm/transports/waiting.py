"""Waits for any of several links at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from gmi_drl.comm.shm.heartbeat import waiting

if TYPE_CHECKING:
    from .doorbell import Doorbell
    from .protocol import Receiver

_SLICE: Final = timedelta(milliseconds=1)


class _Heard(Protocol):
    """The part of a receiver that `wait_any` uses."""

    doorbell: Doorbell | None  # what it is woken by; None: by its sockets
    doorbell_key: object

    def ready(self) -> bool: ...

    def sockets(self) -> list[Any]: ...


def wait_any(receivers: Sequence[Receiver], timeout: timedelta) -> bool:
    """Returns when `poll` of one of them has something to say; False if none has by `timeout`.

    All rings with one doorbell, or all sockets, are slept on together; of a mixture each kind is
    looked at every millisecond.
    """
    if not receivers:
        raise ValueError("no receivers: there is nothing to wait for.")
    heard = [cast(_Heard, receiver) for receiver in receivers]

    def ready() -> bool:
        return any(one.ready() for one in heard)

    doorbells = {one.doorbell_key: one.doorbell for one in heard if one.doorbell is not None}
    sockets = [socket for one in heard if one.doorbell is None for socket in one.sockets()]
    if len(doorbells) == 1 and not sockets:
        return next(iter(doorbells.values())).wait(ready, timeout)
    deadline_s = time.monotonic() + timeout.total_seconds()
    if not doorbells:
        return _poll(sockets, ready, deadline_s)
    doorbell = next(iter(doorbells.values()))
    while not ready():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        doorbell.wait(ready, min(_SLICE, timedelta(seconds=left_s)))
    return True


def _poll(sockets: Sequence[Any], ready: Any, deadline_s: float) -> bool:
    import zmq

    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    while not ready():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        with waiting:
            poller.poll(max(1, int(left_s * 1000)))
    return True
