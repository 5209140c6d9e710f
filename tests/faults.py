"""Scripted failures: which GMI goes down at which step, and how.

    faults = [kill(gmi=2, at_step=5), raise_error(gmi=0, at_step=9)]

A body calls `inject(faults, gmi_id, step)` once in each step.
"""

import json
import os
import signal
import subprocess
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
                time.sleep(1)  # for ever: who waits for it must end it
        os.kill(os.getpid(), getattr(signal, fault.how))


# Kills and stops of launched GMIs, which outlive the processes they hit --------------------------

_FOLDER = "GMI_DRL_TEST_FAULTS"


def script(monkeypatch, path, *moments):
    """From now on launched GMIs are killed at `moments`: (gmi, point, iteration), each once.

    A fourth word says what is done instead: "SIGSTOP", "pause" for about a second, or "gpu fault",
    a fatal one of the GMI's GPU. A moment given twice comes true twice. What was done is in `path`.
    """
    path.mkdir()
    (path / "script.json").write_text(json.dumps(moments))
    monkeypatch.setenv(_FOLDER, str(path))


def folder():
    """Where the script is, and what is written of it."""
    return Path(os.environ[_FOLDER])


def strike(gmi, point, iteration, pid=None, *, late=False):
    """Does this process, or `pid`, what the script has for here if it has not been done yet.

    `late`: also in an iteration after the script's, where it is not sure that this one comes.
    """
    for index, moment in enumerate(json.loads((folder() / "script.json").read_text())):
        when = moment[2]
        if tuple(moment[:2]) != (gmi, point) or not (
            when == iteration or (late and when < iteration)
        ):
            continue
        try:
            os.close(os.open(folder() / f"struck{index}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        how = moment[3] if len(moment) > 3 else "SIGKILL"
        if how == "pause":
            _pause()
        elif how == "gpu fault":
            _write_to_null()
        else:
            os.kill(pid or os.getpid(), getattr(signal, how))


def _pause():
    """Stops this process, until another one that has seen it stopped for a second wakes it."""
    is_stopped = f"grep -q '^State:.T' /proc/{os.getpid()}/status"
    wake = f"until {is_stopped}; do sleep 0.01; done; sleep 1; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", wake]):
        os.kill(os.getpid(), signal.SIGSTOP)


def _write_to_null():
    """Has a kernel write where no memory is, and waits for what CUDA says of it."""
    import cupy

    text = 'extern "C" __global__ void write(int* there) { *there = 1; }'
    cupy.RawKernel(text, "write")((1,), (1,), (cupy.uint64(0),))
    cupy.cuda.runtime.deviceSynchronize()


def struck(path):
    """How many moments of a script have come true."""
    return len(list(path.glob("struck*")))


def check_restarts(result, path, moments):
    """All moments have come true, and who was not woken was started again, and named if stopped."""
    assert struck(path) == len(moments)
    assert result.restarts == sum(moment[3:] != ("pause",) for moment in moments)
    entries = json.loads((result.folder / "run.json").read_text()).get("restarts", [])
    named = [one["gmi_id"] for one in entries if "is stopped by a signal" in one["how"]]
    assert named == [moment[0] for moment in moments if moment[3:] == ("SIGSTOP",)]
