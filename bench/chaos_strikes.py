"""Draws the blows that chaos.py strikes runs with, and deals them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chaos_modes import HANG_S
from chaos_run import Run

BLOWS: Final = {"kill": 5, "pause": 2, "stop": 1}  # weights; a pause is shorter than HANG_S
_SIGNALS: Final = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}
_NAMED: Final = ("launcher", "fork server", "raylet", "agent")
_JUMPS_S: Final = (-86_400, -60, 60, 86_400)


@dataclass(frozen=True)
class Blow:
    """Describes a blow to one process, or to what all of them use."""

    victim: str  # one of _NAMED, "process" (any other), "disk", "clock", "device"
    what: str  # a key of BLOWS, "term" or "int"; "full", "jump", "loss" of the last three
    which: float  # which of several victims, from 0 to 1
    lasts_s: float  # of a pause, a stop, and a full disk
    after_s: float  # after the blow before

    @property
    def ends(self) -> bool:
        """Tells whether the blow ends the launcher."""
        return self.victim == "launcher" and self.what in ("kill", "term", "int")


@dataclass(frozen=True)
class Dealt:
    """Records a blow that was dealt: its victim, and how it is undone when its time is over."""

    blow: Blow
    name: str
    undo: Callable[[], object] | None = None


def drawn(draw: random.Random, mode: str, *, on_ray: bool) -> list[Blow]:
    """Draws a strike: one blow, or two in three of ten. On Ray all are kills."""
    blows = []
    for index in range(2 if draw.random() < 0.3 else 1):
        victim = draw.choice(("launcher", "fork server", "process", "process", "process"))
        what = draw.choices(list(BLOWS), list(BLOWS.values()))[0]
        if victim == "launcher" and what == "kill":
            what = draw.choice(("kill", "kill", "term", "int"))
        chance = draw.random()
        if chance < 0.1:
            victim, what = "disk", "full"
        elif chance < 0.17:
            victim, what = "clock", "jump"
        elif chance < 0.3 and mode == "two devices":
            victim, what = "device", "loss"
        lasts_s = HANG_S + draw.uniform(1, 4) if what == "stop" else draw.uniform(0.05, 2.0)
        after_s = draw.choice((0.0, draw.uniform(0, 0.5))) if index else 0.0
        if on_ray:
            victim = draw.choice(("process", "process", *_NAMED))
            what = "kill"
        blows.append(Blow(victim, what, draw.random(), lasts_s, after_s))
    return blows


def deal(blow: Blow, run: Run) -> Dealt | None:
    """Deals a blow; None if its victim does not run, or it may not be dealt here."""
    if blow.victim == "disk":
        return Dealt(blow, "the disk", _fill(run, blow.which)) if run.has_own_disk else None
    if blow.victim == "clock":
        jump_s = _JUMPS_S[int(blow.which * len(_JUMPS_S))]
        run.jump(jump_s)
        return Dealt(blow, f"the clock by {jump_s} s")
    if blow.victim == "device":
        return _take_a_core(blow, run)
    return _signal(blow, run)


def _signal(blow: Blow, run: Run) -> Dealt | None:
    """Sends a signal to a process."""
    victims = sorted(
        (pid, name)
        for pid, name in run.processes().items()
        if blow.victim == (name if name in _NAMED else "process")
    )
    if not victims:
        return None
    pid, name = victims[int(blow.which * len(victims))]
    number = _SIGNALS.get(blow.what, signal.SIGSTOP)

    def go_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None
    is_hung = blow.what == "stop" and name.startswith("gmi ")  # until its launcher kills it
    return Dealt(blow, name, go_on if number == signal.SIGSTOP and not is_hung else None)


def _take_a_core(blow: Blow, run: Run) -> Dealt | None:
    """Takes a core from the launcher, where it has another.

    Before there are GMIs it would see a smaller machine, which the config does not fit.
    """
    if not any(name.startswith("gmi ") for name in run.processes().values()):
        return None
    with contextlib.suppress(ProcessLookupError):
        cores = sorted(os.sched_getaffinity(run.launcher.pid))
        if len(cores) > 1:
            lost = cores[int(blow.which * len(cores))]
            os.sched_setaffinity(run.launcher.pid, set(cores) - {lost})
            return Dealt(blow, f"core {lost}")
    return None


def _fill(run: Run, which: float) -> Callable[[], object]:
    """Fills the disk but for a little; returns a function that makes room again."""
    ballast = run.disk / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    with contextlib.suppress(OSError):
        os.truncate(ballast, max(0, ballast.stat().st_size - int(which * (1 << 16))))
    return lambda: ballast.unlink(missing_ok=True)
