"""Killing what a runtime has started, at random moments, while it works."""

import contextlib
import math
import os
import random
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

from gmi_drl import runtime
from gmi_drl.runtime.api import session


def kill_child(pid, parent, number=signal.SIGKILL):
    """Signals a process if it still is `parent`'s child; its pid may be another's by now."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z" and int(fields[1]) == parent:
                signal.pidfd_send_signal(fd, number)
                return True
        finally:
            os.close(fd)
    return False


def started(actors=True, workers=True):
    """Pids of the processes that this process's runtime has forked and that run now."""
    return [
        process.pid
        for process in list(session.driver().processes.values())
        if process.pid and not process.dead and (actors if process.actor else workers)
    ]


def kill_started(pid, number=signal.SIGKILL):
    """Signals one of them."""
    return kill_child(pid, session.driver().server.process.pid, number)


def lose(*refs):
    """Takes values out of the object store, as if they could not be read back from disk."""
    runtime.wait(refs, len(refs), timedelta(seconds=30))
    objects = session.driver().objects

    def lost():
        for ref in refs:
            objects._do(objects.store.delete(ref.id))
        for ref in refs:
            objects._lost(ref.id, "a test has lost it.")

    session.driver().post(lost)


def calls_done():
    """How many calls are over, in the runtime of this process."""
    return session.driver().tasks.num_done


def wait_while_calls_end(refs, stall_s=60):
    """Waits until all references are there, for as long as calls end: a busy machine is no fault.

    AssertionError once no call of the runtime has ended for `stall_s`.
    """
    left, before, since_s = list(refs), calls_done(), time.monotonic()
    while left:
        _, left = runtime.wait(left, len(left), timedelta(seconds=1))
        if (now := calls_done()) != before:
            before, since_s = now, time.monotonic()
        stalled_s = time.monotonic() - since_s
        assert stalled_s < stall_s, f"no call has ended for {stalled_s:.0f} s; {len(left)} to come"


class Killer:
    """Kills one of `targets()` every now and then, as long as the block lasts.

    After each it lets `progress()` come on by one at least, and after that some more time pass, at
    most `pause_s`: else a slow machine would do nothing but begin again. `killed` counts, up to
    `most`.
    """

    def __init__(
        self, seed, pause_s=0.1, targets=started, kill=kill_started, progress=calls_done,
        most=math.inf,
    ):  # fmt: skip
        self.killed, self._most = 0, most
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self._progress = progress
        self._targets = targets
        self._kill = kill
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        before = -1
        while self.killed < self._most and not self._over.wait(
            self._random.uniform(0, self._pause_s)
        ):
            now = self._progress()
            targets = self._targets() if now > before else ()
            if targets and self._kill(self._random.choice(targets)):
                self.killed += 1
                before = now


def descendants():
    """(pid, command) of every process that comes from this one, and runs."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [os.getpid()]
    while queue:
        for pid in children.get(queue.pop(), ()):
            queue.append(pid)
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                found.append((pid, command.decode()))
    return found
