"""Scripted failures: which GMI goes down at which step, and how.

    faults = [kill(gmi=2, at_step=5), raise_error(gmi=0, at_step=9)]

A body calls `inject(faults, gmi_id, step)` once in each step.
"""

import os
import signal
import time
from dataclasses import dataclass


class Injected(RuntimeError):
    """What a scripted failure raises."""


@dataclass(frozen=True)
class Fault:
    """One failure of one GMI at one step."""

    gmi: int
    at_step: int
    how: str  # "raise", "hang", "exit <code>", or the name of a signal


def kill(gmi, at_step, by="SIGKILL"):
    """The GMI's process is killed by a signal."""
    return Fault(gmi, at_step, by)


def raise_error(gmi, at_step):
    """The GMI raises Injected."""
    return Fault(gmi, at_step, "raise")


def leave(gmi, at_step, code):
    """The GMI's process exits with a code, without a word."""
    return Fault(gmi, at_step, f"exit {code}")


def hang(gmi, at_step):
    """The GMI does nothing any more, and listens to nobody."""
    return Fault(gmi, at_step, "hang")


def inject(faults, gmi, step):
    """Lets happen what is to happen to this GMI at this step."""
    for fault in faults:
        if (fault.gmi, fault.at_step) != (gmi, step):
            continue
        if fault.how == "raise":
            raise Injected(f"gmi {gmi} at step {step}")
        if fault.how.startswith("exit"):
            os._exit(int(fault.how.split()[1]))
        if fault.how == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        os.kill(os.getpid(), getattr(signal, fault.how))
