"""The kinds of message, and what a request to fork an actor says.

Driver and actor share one socket, driver and fork server another; each kind is used on one of the
two and in one direction. The `id` of a frame is the call's number, or the actor's on the fork
server's socket.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

# What OpenMP, MKL, OpenBLAS and numexpr read when they are loaded.
THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class Kind(enum.IntEnum):
    # driver -> actor
    BUILD = 1  # (pickled setup or b"", pickled class), then (args, kwargs) of __init__
    CALL = 2  # (method, args, kwargs)
    ASK_STOP = 3  # sets stop_requested()
    CLOSE = 4  # the same, and: end after the call that runs now
    # actor -> driver
    RESULT = 5  # a value
    ERROR = 6  # Failure
    RECORD = 7  # what emit() was given; id: how many were dropped so far
    # driver -> fork server
    SPAWN = 8  # SpawnRequest, with the actor's end of its socket
    SIGNAL = 9  # signal number, for the whole process group
    # fork server -> driver
    READY = 10  # Ready
    FORKED = 11  # pid
    NOT_FORKED = 12  # why
    EXITED = 13  # Exited


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the fork server is told on its command line."""

    control_fd: int
    lock_fd: int
    driver_pid: int
    directory: str
    preload: list[str]
    sys_path: list[str]


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """What is set in the child right after the fork, before any user code."""

    name: str
    environment: dict[str, str]  # the whole of it
    cores: tuple[int, ...]  # empty: the launcher's
    num_threads: int
    log: str
    directory: str  # working directory
    sys_path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """The fork server has imported what it was told to."""

    pid: int
    loaded: tuple[str, ...]
    skipped: dict[str, str]  # module: why
    num_threads: int  # 1, or forking is not safe
    threaded_by: str  # the module whose import started threads
    import_s: float


@dataclass(frozen=True, slots=True)
class Exited:
    """One actor's process ended."""

    exit_code: int | None
    signal: int | None
    died_s: float  # CLOCK_MONOTONIC: comparable between processes of one host


@dataclass(frozen=True, slots=True)
class Failure:
    """A call, or the building of an actor, raised."""

    cause: bytes  # the pickled exception; empty when it cannot be pickled
    traceback: str
    raised_s: float
