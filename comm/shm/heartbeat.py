"""Heartbeats show the launcher that a GMI makes progress, and in which phase it is.

A beat is one word in the tally, about a microsecond. While a GMI waits for another its word says
so: that wait has a deadline of its own. The heartbeat is bound to the thread of its role; in other
threads `beat` and `waiting` do nothing. Nothing here imports torch.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from .tally import Tally

COUNTER: Final = "heartbeat"  # its name in the tally
SET_UP: Final = "set-up"
# What a GMI can be in; "" says nothing of what it does, so that it may be silent for ever.
_PHASES: Final = (
    "", SET_UP, "start", "iteration", "rollout", "update", "sending", "checkpoint", "evaluation",
    "serving",
)  # fmt: skip
_CODES: Final = {name: code for code, name in enumerate(_PHASES)}
_WAITS: Final = 0x80
_BEAT: Final = 0x100  # the bits above count the beats


class Pulse(NamedTuple):
    """The phase that a GMI is in, and whether it waits for another GMI."""

    phase: str
    waits: bool  # for another GMI


def pulse(word: int) -> Pulse:
    """Decodes the word that a GMI writes into the tally; each beat writes another word."""
    return Pulse(_PHASES[word & (_WAITS - 1)], bool(word & _WAITS))


class Heartbeat:
    """The heartbeat of one GMI, which begins in its set-up."""

    def __init__(self, tally: Tally, gmi_id: int) -> None:
        self._write = tally.writer(gmi_id, COUNTER)
        self._word = tally[gmi_id, COUNTER] & -_BEAT  # goes on behind that of a dead process
        self.beat(SET_UP)

    def beat(self, phase: str | None = None) -> None:
        """Shows progress of the GMI, which is in `phase` from now on (None: where it was)."""
        word = (self._word & ~_WAITS) + _BEAT
        if phase is not None:
            word = (word & -_BEAT) | _CODES[phase]
        self._word = word
        self._write(word)

    def progress(self) -> None:
        """Beats for a role that does not say in which phase it is."""
        self.beat(None if pulse(self._word).phase else "iteration")

    def begin_wait(self) -> None:
        """Shows that the GMI waits for another one, until its next beat."""
        self._word = (self._word | _WAITS) + _BEAT
        self._write(self._word)


_here: Final = threading.local()


def bind(heartbeat: Heartbeat | None) -> None:
    """Makes `heartbeat` that of this thread, or takes it away."""
    _here.heartbeat = heartbeat


def beat(phase: str | None = None) -> None:
    """Shows progress of the GMI of this thread; see Heartbeat.beat."""
    heartbeat: Heartbeat | None = getattr(_here, "heartbeat", None)
    if heartbeat is not None:
        heartbeat.beat(phase)


class _Waiting:
    """Inside the block the GMI of this thread waits for another one."""

    def __enter__(self) -> None:
        heartbeat: Heartbeat | None = getattr(_here, "heartbeat", None)
        if heartbeat is not None:
            heartbeat.begin_wait()

    def __exit__(self, *_: object) -> None:
        beat()


waiting: Final = _Waiting()
