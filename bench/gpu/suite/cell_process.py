"""Runs one cell in a process of its own: `cell_process.py CELL.json`, answers in JSON.

`measured` starts it, waits until its deadline, ends all it started, and checks what it left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

_MARK: Final = "cell: "
ENDS_S: Final = 20.0  # for a cell that is asked to end: MPS daemons take a while
_GOES_S: Final = 3.0  # for processes and files that are still going when a cell has ended
_TELLS_S: Final = 10.0  # between two messages about a cell that still runs
_SHM: Final = Path("/dev/shm")


def measured(
    cell: Mapping[str, Any],
    stage: Mapping[str, Any],
    deadline_s: float,
    kept: Path,
    tells: Callable[[float], None] = lambda took_s: None,
) -> dict[str, Any]:
    """Returns the record of a resolved cell: results, or `failed` and `why`; and what it left.

    It writes what it can resume from to `kept`; `tells` is called every ten seconds with the
    seconds so far. Blocks for `deadline_s`, and some seconds more if the cell has to be ended.
    """
    from gmi_drl.gmi.lease import sweep

    shared_before, began_s = _shared(), time.monotonic()
    with _folder() as folder:
        path, log = folder / "cell.json", folder / "log"
        request = {"cell": cell, "stage": stage, "kept": str(kept), "parent": os.getpid()}
        path.write_text(json.dumps(request))
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "cell_process.py"), str(path)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        try:
            hung = _timed_out(process, deadline_s, tells)
        finally:
            _end(process)
        lines = log.read_text(errors="replace").splitlines()
    answers = [line for line in lines if line.startswith(_MARK)]
    if answers:
        result = json.loads(answers[-1].removeprefix(_MARK))
    else:
        why = f"was not done after {deadline_s:.0f} s" if hung else f"ended: {process.returncode}"
        result = {"failed": "hang" if hung else "crash", "why": "\n".join([why, *lines[-12:]])}
    leftovers = _leftovers(process.pid, shared_before)
    leftovers += [
        s.error or f"what a lease of {s.lease.kind} held, undone"
        for s in sweep()
        if s.error or s.undone
    ]
    return {**cell, **result, "left": leftovers, "wall_s": round(time.monotonic() - began_s, 2)}


def cell_lock(kept: Path) -> Path:
    """Returns the lock that a cell holds until it ends, even if its suite was killed before."""
    return kept.with_name("cell.lock")


def _timed_out(
    process: subprocess.Popen[bytes], deadline_s: float, tells: Callable[[float], None]
) -> bool:
    """Waits for the end of a process; tells whether it missed the deadline."""
    began_s = time.monotonic()
    while (left_s := began_s + deadline_s - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(_TELLS_S, left_s))
            return False
        tells(time.monotonic() - began_s)
    return process.poll() is None


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Makes a run directory; what a killed suite leaves of it, the next run removes."""
    from gmi_drl.runtime.process import run_directory

    path, lock = run_directory.create()
    try:
        yield path
    finally:
        run_directory.remove(path)
        os.close(lock)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process; it is asked first, so that it releases daemons and slices."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _leftovers(session: int, before: set[str]) -> list[str]:
    """Returns processes of the cell's session and shared memory of ours that remain."""
    until_s = time.monotonic() + _GOES_S
    while True:
        leftovers = [f"process {pid}" for pid in _session(session)]
        leftovers += [f"/dev/shm/{name}" for name in sorted(_shared() - before)]
        if not leftovers or time.monotonic() > until_s:
            return leftovers
        time.sleep(0.05)


def _session(session: int) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                pids.append(int(path.parent.name))
    return pids


def _shared() -> set[str]:
    names = (path.name for path in _SHM.iterdir()) if _SHM.is_dir() else ()
    return {name for name in names if name.startswith(("gmi-drl", "gmi_drl"))}


def main(path: str) -> int:
    """Runs the cell; it ends when the suite does."""
    from gmi_drl.launcher.interrupts import terminate_as_interrupt
    from gmi_drl.runtime.cache_files import locked
    from gmi_drl.runtime.process.child_setup import PR_SET_PDEATHSIG, prctl

    request = json.loads(Path(path).read_text())
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != request["parent"]:
        return 1  # the suite ended before prctl was called
    kept = Path(request["kept"])
    with terminate_as_interrupt(), locked(cell_lock(kept), timedelta(0), request["cell"]["key"]):
        from gpu.suite.cells import measure

        result = measure(request["cell"], request["stage"], kept)
    print(_MARK + json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
