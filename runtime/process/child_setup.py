"""Sets up a forked child before any user code: its group, log, cores, threads, seeds."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import functools
import os
import random
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gmi_drl.runtime.wire.protocol import SpawnRequest

# A process that gets it writes the Python stacks of its threads to its log.
STACK_SIGNAL: Final = signal.SIGUSR2
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NAME: Final = 15

_MIN_ARGUMENT_BYTES: Final = 64  # fewer bytes are no fork server's arguments, or are hidden

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """prctl(2) with one integer argument; OSError when the kernel refuses."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")


@functools.cache
def _arguments() -> tuple[int, int]:
    """Returns the addresses of the first argument and of the end of all, as in the parent."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46])  # arg_start, arg_end; see proc_pid_stat(5)


def set_title(text: str) -> None:
    """Makes ps and top show `gmi-drl: <text>` (top its first 15 characters) for this process.

    It overwrites the arguments of the fork server, which are long and which Python has copied.
    """
    title = f"gmi-drl: {text}".encode()
    _libc.prctl(_PR_SET_NAME, title[:15], 0, 0, 0)
    start, end = _arguments()
    if end - start > _MIN_ARGUMENT_BYTES:
        title = title[: end - start - 1]
        ctypes.memset(start + len(title), 0, end - start - len(title))
        ctypes.memmove(start, title, len(title))


def python_path() -> str:
    """Returns the PYTHONPATH by which a new interpreter finds this package, installed or not."""
    package_root = str(Path(sys.modules["gmi_drl"].__file__ or "").parents[1])
    return os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))


def signal_when_gone(lifeline: int, number: int, whom: int) -> None:
    """Has the kernel signal `whom` (a pid, or a group as -pgid) when another process is gone.

    `lifeline` is the reading end of a pipe whose other end only that process has open. It works
    also while this process is stopped, or busy for ever.
    """
    try:
        # The owner is a property of the open file, which a forked process shares with its parent.
        file = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(file, fcntl.F_SETOWN, whom)
        fcntl.fcntl(file, fcntl.F_SETSIG, number)
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    except OSError:  # in a sandbox, where the fork server has to do it
        return
    poll = select.poll()
    poll.register(lifeline)
    if poll.poll(0):  # it was gone before the lines above
        os.kill(whom, number)


def isolate(parent: int, lifelines: Sequence[int]) -> None:
    """Makes a process group, which dies with the holder of each lifeline, and resets signals.

    SIGINT is ignored: on Ctrl-C it is the launcher that decides what its actors do.
    """
    # Not a session: the kernel's autogroup scheduling would then treat every actor as another
    # user, and sched_yield between actors that share a core would do nothing.
    os.setpgid(0, 0)
    for lifeline in lifelines:
        signal_when_gone(lifeline, signal.SIGKILL, -os.getpid())
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died between the fork and the line above
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def open_log(path: str) -> None:
    """Appends standard output, error and tracebacks of crashes to `path`, by the line."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(  # noqa: SIM115 - lives as long as the process
            number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(STACK_SIGNAL, file=sys.stderr)


def use_cores(cores: Sequence[int]) -> None:
    """Has this process run on these cores; on all that it may use if there are none."""
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise ValueError(
            f"cores={list(cores)}: {error.strerror}; this process may use "
            f"{sorted(os.sched_getaffinity(0))}. Choose of those."
        ) from error


def configure(request: SpawnRequest) -> None:
    """Sets title, log, environment, directory, module path, cores, thread counts, random seeds."""
    set_title(request.title)
    open_log(request.log)
    for name in os.environ.keys() - request.environment.keys():
        del os.environ[name]
    for name, value in request.environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    sys.path[:] = request.sys_path
    os.chdir(request.directory)
    use_cores(request.cores)
    # Modules loaded before the fork have read the variables above in the fork server.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(request.num_threads)
        torch.default_generator.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    random.seed()
