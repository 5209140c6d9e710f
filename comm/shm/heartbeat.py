"""Heartbeats show the launcher that a GMI makes progress, and in which phase it is.

A beat is one word in the tally, about a microsecond. The word names the process that wrote it: one
that has been restarted is not taken for the one before it. While a GMI waits for another its word
says so: that wait has a deadline of its own. The heartbeat is bound to the thread of its role (see
`gmi_drl.runtime.process.progress`). Nothing here imports torch.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from gmi_drl.runtime.process.progress import SET_UP

from .tally import Tally

COUNTER: Final = "heartbeat"  # its name in the tally
# What a GMI can be in; "" says nothing of what it does, so that it may be silent for ever.
_PHASES: Final = (
    "", SET_UP, "start", "iteration", "rollout", "update", "sending", "checkpoint", "evaluation",
    "serving",
)  # fmt: skip
_CODES: Final = {name: code for code, name in enumerate(_PHASES)}
# From its lowest bit on, a word has 7 bits of phase, 1 of waiting, 22 of pid (Linux has no more),
# and 34 that count the beats and begin again at 0.
_WAITS: Final = 1 << 7
_PID: Final = 8
_BEAT: Final = 1 << 30
_WORD: Final = (1 << 64) - 1


class Pulse(NamedTuple):
    """The phase that a GMI is in, whether it waits for another GMI, and the pid that says so."""

    phase: str
    waits: bool  # for another GMI
    pid: int  # 0 before the first beat


def pulse(word: int) -> Pulse:
    """Decodes the word that a GMI writes into the tally; each beat writes another word."""
    pid = (word % _BEAT) >> _PID
    return Pulse(_PHASES[word & (_WAITS - 1)], bool(word & _WAITS), pid)


class Heartbeat:
    """The heartbeat of one GMI, which begins in its set-up."""

    def __init__(self, tally: Tally, gmi_id: int) -> None:
        self._write = tally.writer(gmi_id, COUNTER)
        self._word = os.getpid() << _PID
        self.beat(SET_UP)

    def beat(self, phase: str | None = None) -> None:
        """Shows progress of the GMI, which is in `phase` from now on (None: where it was)."""
        word = ((self._word & ~_WAITS) + _BEAT) & _WORD
        if phase is not None:
            word = (word & ~(_WAITS - 1)) | _CODES[phase]
        self._word = word
        self._write(word)

    def progress(self) -> None:
        """Beats for a role that does not say in which phase it is."""
        self.beat(None if pulse(self._word).phase else "iteration")

    def begin_wait(self) -> None:
        """Shows that the GMI waits for another one, until its next beat."""
        self._word = ((self._word | _WAITS) + _BEAT) & _WORD
        self._write(self._word)
