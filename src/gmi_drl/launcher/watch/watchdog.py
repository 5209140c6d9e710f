"""Watches over the GMIs of a run: ends those that hang, tells of restarts, and closes all.

A GMI hangs when it lives, waits for nobody, and makes no progress. One that waits for another has a
deadline in that wait, so only those that do not wait are watched, and those whose process is
stopped. Silence is counted by this process's own looks: while the launcher is stopped itself, or
the machine sleeps, no time passes.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gmi_drl import runtime
from gmi_drl.comm.shm.heartbeat import COUNTER, Pulse, pulse
from gmi_drl.comm.shm.tally import Tally
from gmi_drl.gmi import Gang, GmiDied
from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.launcher.hosts.messages import HostLost
from gmi_drl.launcher.plan.planning import ask_actor
from gmi_drl.launcher.view.view import RunView
from gmi_drl.launcher.watch.policy_log import PolicyLog
from gmi_drl.roles.loading import OUR_CLASSES
from gmi_drl.runtime.errors import exit_text
from gmi_drl.runtime.process.progress import SET_UP

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

# For making environments, and for all before: longer than GMIs wait there for one another.
_SET_UP_S: Final = 1200.0
_MOST_S: Final = 1.0  # of silence between two looks
_CLOSING_S: Final = 60.0
_POLL: Final = timedelta(milliseconds=100)
_STATES: Final = {
    "R": "computes",
    "S": "sleeps",
    "D": "waits in the kernel (state D), where it cannot be killed before that wait ends",
    "T": "is stopped by a signal (state T), so that it has no stack to show",
    "t": "is held by a debugger",
}


@dataclass
class _Progress:
    """Holds what was seen of a GMI at the last look."""

    pid: int
    word: int
    silent_s: float = 0.0

    @property
    def pulse(self) -> Pulse:
        """Says in which phase it is; a process that has not said so yet is set up."""
        reported = pulse(self.word)
        return reported if reported.pid == self.pid else Pulse(SET_UP, False, self.pid)


class Watchdog:
    """Ends the GMIs of a gang that hang: for the gang a death like any other.

    `timeout_s`: how long a GMI may be silent; None watches nobody.
    """

    def __init__(self, gang: Gang, tally: Tally, timeout_s: float | None) -> None:
        self._gang, self._tally, self._timeout_s = gang, tally, timeout_s
        self._progress: dict[int, _Progress] = {}
        self._looked_s = time.monotonic()

    def look(self) -> None:
        """Ends those that hang by now. Waits a moment for their stacks, and else for nothing."""
        if self._timeout_s is None:
            return
        now_s = time.monotonic()
        passed_s = min(now_s - self._looked_s, _MOST_S)
        self._looked_s = now_s
        working = {gmi_id: pid for gmi_id, pid in self._gang.at_work().items() if pid is not None}
        for gmi_id, pid in working.items():
            word, progress = self._tally[gmi_id, COUNTER], self._progress.get(gmi_id)
            if progress is None or progress.pid != pid:
                self._progress[gmi_id] = _Progress(pid, word)
            elif word != progress.word:
                progress.word, progress.silent_s = word, 0.0
            else:
                progress.silent_s += passed_s
        for gmi_id, pid in working.items():
            if reason := self._hangs(self._progress[gmi_id]):
                alone = list(working.values()).count(pid) == 1  # else they are threads of it
                self._end(gmi_id, pid, f"{'it' if alone else f'gmi {gmi_id} of it'} hung {reason}")
                for progress in self._progress.values():
                    if progress.pid == pid:  # its other threads need not end it again
                        progress.silent_s = 0.0

    def _hangs(self, gmi: _Progress) -> str:
        """Says where a GMI hangs, if it does."""
        assert self._timeout_s is not None
        if gmi.silent_s < self._timeout_s:
            return ""
        phase, waits, _ = gmi.pulse
        state = _state_of(gmi.pid)
        if state != "T":
            if waits or not phase:
                return ""
            if phase == SET_UP and gmi.silent_s < _SET_UP_S:
                return ""
        doing = "waiting for another GMI" if waits else f"in phase {phase}" if phase else "at work"
        state_text = _STATES.get(state, f"is in state {state}")
        return f"{doing}: no progress for {gmi.silent_s:.0f} s; process {gmi.pid} {state_text}"

    def _end(self, gmi_id: int, pid: int, why: str) -> None:
        if _state_of(pid) != "T" and self._gang.write_stacks(gmi_id):
            why = f"{why}; its log ends with its Python stack"
        if self._gang.at_work().get(gmi_id) == pid:  # it has not come to its end in the meantime
            self._gang.end(gmi_id, f"{why} (run.hang_timeout_s)")


def _state_of(pid: int) -> str:
    """Returns the state of a process as /proc has it: R, S, D, T, ...; "" if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


class Restarts:
    """Counts the restarts of a run: in words as they happen, and in run.json."""

    def __init__(self, gang: Gang, folder: RunFolder, budget: int, policies: PolicyLog) -> None:
        self._gang, self._folder, self._budget = gang, folder, budget
        self._policies = policies
        self._counts: Counter[int] = Counter()

    @property
    def count(self) -> int:
        return self._counts.total()

    def news(self) -> list[str]:
        """Tells each restart since the last call."""
        messages = []
        for gmi_id, death in self._gang.restarts():
            self._policies.died(gmi_id, self._counts[gmi_id], death.how())
            self._counts[gmi_id] += 1
            end, attempt = death.how(), f"{self._counts[gmi_id]} of {self._budget}"
            messages.append(f"gmi {gmi_id} {end}; restarted on its slice ({attempt})")
            self._folder.add_entry("restarts", gmi_id=gmi_id, how=end)
        return messages


def is_recoverable(role: type[DRL_role] | str, folder: Path | None) -> bool:
    """Says whether GMIs of a role are restarted; a class that cannot be loaded fails there."""
    if not isinstance(role, str):
        return role.recoverable
    if role in OUR_CLASSES or role == "gmi_drl:Holistic":
        return True
    with suppress(runtime.ActorRuntimeError):
        return bool(ask_actor("role", _loads_recoverable, role, folder))
    return False


def _loads_recoverable(reference: str, folder: Path | None) -> bool:
    from gmi_drl.roles import load_role

    return load_role(reference, folder).recoverable


def close_all(gang: Gang, screen: RunView) -> None:
    """Has every GMI close its environments, and warns on `screen` of what went wrong with that.

    All are killed when one takes longer than a minute, or crashes.
    """
    if trouble := _close(gang):
        done = "The run is done, and its results are whole"
        screen.show({"kind": "warning", "message": f"{trouble} {done}"})


def _close(gang: Gang) -> str:
    """Closes them; returns what went wrong, in a sentence."""
    deadline_s = time.monotonic() + _CLOSING_S
    try:
        gang.start("close")
        while not gang.wait(_POLL):
            if deaths := gang.restarts():
                gang.kill()
                gmi_id, death = deaths[0]
                end = exit_text(death.exit_code, death.signal)
                return f"gmi {gmi_id} {end} while it closed its environments."
            if time.monotonic() > deadline_s:
                late, stack = list(gang.at_work()), ""
                if late and gang.write_stacks(late[0]):
                    stack = f" The log of gmi {late[0]} ends with its Python stack."
                gang.kill()
                gmis = ", ".join(f"gmi {gmi_id}" for gmi_id in late) or "a gmi on another host"
                return (
                    f"{gmis}: close() of the environments has not returned after {_CLOSING_S:g} s, "
                    f"and the process was killed.{stack}"
                )
    except GmiDied as error:
        return f"{str(error).splitlines()[0]}, while it closed its environments."
    except HostLost as error:
        gang.kill()
        return str(error)
    except KeyboardInterrupt:
        gang.kill()
        return "interrupted while GMIs closed their environments."
    gang.results()
    return ""
