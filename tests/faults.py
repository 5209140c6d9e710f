"""Scripted failures: which GMI goes down at which step, and how.

    faults = [kill(gmi=2, at_step=5), raise_error(gmi=0, at_step=9)]

A body calls `inject(faults, gmi_id, step)` once in each step.
"""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path


class Injected(RuntimeError):
    """What a scripted failure raises."""


@dataclass(frozen=True)
class Fault:
    """One failure of one GMI at one step."""

    gmi: int
    at_step: int
    how: str  # "raise", "hang", "exit <code>", "sys.exit <code>", or the name of a signal


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
        if fault.how.startswith("sys.exit"):
            sys.exit(int(fault.how.split()[1]))
        if fault.how.startswith("exit"):
            os._exit(int(fault.how.split()[1]))
        if fault.how == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        os.kill(os.getpid(), getattr(signal, fault.how))


# Kills of launched GMIs, which outlive the processes they hit ------------------------------------

_FOLDER = "GMI_DRL_TEST_FAULTS"


def script(monkeypatch, path, *moments):
    """From now on launched GMIs are killed at `moments`: (gmi, point, iteration), each once.

    A moment given twice comes true twice. What was done is in `path`.
    """
    path.mkdir()
    (path / "script.json").write_text(json.dumps(moments))
    monkeypatch.setenv(_FOLDER, str(path))


def folder():
    """Where the script is, and what is written of it."""
    return Path(os.environ[_FOLDER])


def strike(gmi, point, iteration, pid=None):
    """Kills this process, or `pid`, if the script has a moment for here that has not come yet."""
    for index, moment in enumerate(json.loads((folder() / "script.json").read_text())):
        if tuple(moment) != (gmi, point, iteration):
            continue
        try:
            os.close(os.open(folder() / f"struck{index}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(pid or os.getpid(), signal.SIGKILL)


def struck(path):
    """How many moments of a script have come true."""
    return len(list(path.glob("struck*")))
