"""References as futures of `concurrent.futures`."""

from __future__ import annotations

import collections
import threading
from concurrent.futures import Future
from typing import Any, Final

from .refs import ObjectRef, get_value
from .session import running


def future_of(ref: ObjectRef) -> Future[Any]:
    """A future with the value of `ref`, or what `get` raises."""
    future: Future[Any] = Future()
    runtime = running()
    if not runtime.reads:  # only who waits gets anything
        threading.Thread(target=_fill, args=(future, ref), daemon=True).start()
    elif ref.slot.watch(lambda: _arrived.add(future, ref)):
        runtime.want([ref.slot], True)
    else:
        _arrived.add(future, ref)
    return future


def _fill(future: Future[Any], ref: ObjectRef) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(get_value(ref, None, None))
    except BaseException as error:
        future.set_exception(error.with_traceback(None))  # its frames would keep the reference


class _Arrived:
    """Results that are there, and a thread that fills their futures while there are any.

    Values may have to be read from the store, and callbacks of futures may do anything: neither is
    for the thread that takes in answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[tuple[Future[Any], ObjectRef]] = collections.deque()
        self._filling = False

    def add(self, future: Future[Any], ref: ObjectRef) -> None:
        with self._lock:
            self._waiting.append((future, ref))
            if not self._filling:
                self._filling = True
                threading.Thread(target=self._fill, name="gmi_drl-futures", daemon=True).start()

    def _fill(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._filling = False
                    return
                future, ref = self._waiting.popleft()
            _fill(future, ref)
            del future, ref  # else the last one is kept


_arrived: Final = _Arrived()
