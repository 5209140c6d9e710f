"""Treats SIGTERM and SIGHUP as Ctrl-C, so that what was started is ended and given back.

Whoever asks a program to end does it once or several times, and with a closed terminal both signals
come. Outside a run that is watched the first one stops, and for as long as giving back can take the
others change nothing.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Final

_NUMBERS: Final = (signal.SIGTERM, signal.SIGHUP)
_GIVING_BACK: Final = timedelta(seconds=30)  # MPS daemons take 20 s at most, MIG instances 10


class _Interrupts:
    """Handles the signals."""

    def __init__(self) -> None:
        self.watched = False  # somebody counts the signals, and stops when it sees fit
        self.stopping_since_s: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if not self.watched:
            since_s = self.stopping_since_s
            if since_s is not None and now_s - since_s < _GIVING_BACK.total_seconds():
                return
            self.stopping_since_s = now_s
        raise KeyboardInterrupt


_installed: _Interrupts | None = None


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP raise KeyboardInterrupt in this block; once within it is enough.

    A signal that is ignored (nohup) stays so. Python handles signals in the main thread alone: in
    another one this does nothing.
    """
    global _installed
    if _installed is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    old_handlers = {number: signal.getsignal(number) for number in _NUMBERS}
    _installed = _Interrupts()
    try:
        for number, handler in old_handlers.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _installed)
        yield
    finally:
        for number, handler in old_handlers.items():
            # None: it was not set by Python, which cannot put it back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _installed = None


@contextmanager
def every_signal_counts() -> Iterator[None]:
    """Lets each SIGTERM and SIGHUP raise KeyboardInterrupt in this block, not the first alone.

    When one ends it, giving back has begun.
    """
    if _installed is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _installed.watched, _installed.stopping_since_s = True, None
    try:
        yield
    except KeyboardInterrupt:
        _installed.stopping_since_s = time.monotonic()
        raise
    finally:
        _installed.watched = False
