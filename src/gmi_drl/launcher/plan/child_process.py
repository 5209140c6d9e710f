"""Runs code of the user's in a process of its own.

It may import torch, print, hang, crash, or start processes: nothing of that reaches the caller or
is left behind.

The process that is started forks the one that runs the code, waits for it with a deadline, and
kills all that came from it, whatever session or group that has put itself in: as a sub-reaper it
inherits what lost its parent. It ends all of it, too, when the caller dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

from gmi_drl.runtime.errors import exit_text

_LOOK_S: Final = 0.02
_TELL_S: Final = 0.5  # from one look at what was printed to the next
_LATE: Final = 124  # exit status of a deadline that has passed, as of coreutils' timeout
_KILLED: Final = 128  # and more: the signal that ended it
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER
_MARGIN: Final = timedelta(seconds=30)


class ChildFailed(Exception):
    """Says why the code gave no answer: it was too `late`, or ended its process."""

    def __init__(self, text: str, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


def ask(
    module: str,
    function: str,
    arguments: Sequence[Any],
    deadline: timedelta,
    variables: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Any:
    """Returns what a module's function gives; ChildFailed says why nothing.

    Its arguments and its answer are plain data, as JSON has it. `variables` are set in its
    environment; `progress` is called now and then with the line that it printed last to stderr.
    Blocks for `deadline` at the most, and some seconds more on a machine that is busy.
    """
    limit_s = deadline.total_seconds()
    with (
        tempfile.TemporaryFile() as question,  # a command line takes no more than 128 KiB of one
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as log,
    ):
        question.write(json.dumps(arguments).encode())
        question.seek(0)
        command = [sys.executable, "-m", __name__, str(answer.fileno()), str(limit_s)]
        process = subprocess.Popen(
            [*command, module, function],
            env={**os.environ, **(variables or {})},
            stdin=question,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=[answer.fileno()],
            start_new_session=True,
        )
        try:
            end_s = time.monotonic() + (deadline + _MARGIN).total_seconds()
            while progress is not None and process.poll() is None and time.monotonic() < end_s:
                if line := _last_line(log):
                    progress(line)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_TELL_S)
            status = process.wait(max(end_s - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:  # what it kills does not go
            status = _LATE
        finally:
            if process.poll() is None:  # Ctrl-C
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_MARGIN.total_seconds())
        answer.seek(0)
        if text := answer.read():
            return json.loads(text)
        if status == _LATE:
            raise ChildFailed(f"it has not ended after {limit_s:g} s", late=True)
        how = exit_text(None, status - _KILLED) if status > _KILLED else exit_text(status, None)
        last = _last_line(log) if status == 1 else ""  # else it says nothing of its end
        raise ChildFailed(f"it {how}: {last}" if last else f"it {how}")


def _last_line(log: IO[bytes]) -> str:
    """Returns what was printed last; whoever prints shares the file's position, which stays."""
    end = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), 4096, max(0, end - 4096)).decode(errors="replace").strip()
    return text.splitlines()[-1] if text else ""


def _main(answer: str, deadline_s: str, module: str, function: str) -> None:
    """Forks the process that runs the code, waits for it, and kills all that came from it."""
    end_s, caller = time.monotonic() + float(deadline_s), os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_KILLED + signal.SIGTERM))
    worker = os.fork()
    if not worker:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        arguments = json.load(sys.stdin)  # of which the code finds the end
        text = json.dumps(getattr(import_module(module), function)(*arguments))
        os.write(int(answer), text.encode())
        os._exit(0)  # threads of the code may go on for ever
    status = _LATE
    try:
        while time.monotonic() < end_s and os.getppid() == caller:
            exited_pid, code = os.waitpid(worker, os.WNOHANG)
            if exited_pid:
                code = os.waitstatus_to_exitcode(code)
                status = _KILLED - code if code < 0 else code
                break
            time.sleep(_LOOK_S)
    finally:
        _kill_all()
    os._exit(status)


def _kill_all() -> None:
    """Kills every process that came from this one, until none is left."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        for pid in map(int, children.read_text(encoding="ascii").split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)  # by then its children belong to this process
        except ChildProcessError:
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
