"""Defines the messages between the processes of a runtime, and their contents.

The driver has two sockets with every process, and one with the fork server. On the first one calls,
values and requests go both ways, in order. The second one is for what must be heard while a call
runs. Bodies are pickles of plain tuples, as the comments say, or packed values (`packing`).

A *place* says where a packed value lies: it is the bytes, or (offset, size) in the object store's
shared memory, where the value stays until the process sends UNPIN.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# The variables that OpenMP, MKL, OpenBLAS and numexpr read when they are loaded.
THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip

STAMP: Final = struct.Struct("<dd")  # before a result: Unix time of the call's begin, its seconds

Place = bytes | tuple[int, int]


class Kind(enum.IntEnum):
    # driver -> process
    BUILD = 1  # Build
    FUNCTION = 2  # (id, name, body): sent before its first call; an empty body: no more come
    RUN = 3  # id: the call's number; (task, name, function, returns, arguments, inputs, sequence,
    #   attempt, failures, replayed, details: of a task, its resources and GPUs (None: one CPU);
    #   of a method, what its options are instead of the class's, packed)
    VALUE = 4  # (object, place, failed)
    READY = 5  # (object, whether it is in the store): it is ready; its value can be asked for
    REPLY = 6  # id: the request's number; (failed, what it gave)
    # driver -> process, on the second socket
    ASK_STOP = 8  # sets stop_requested()
    CLOSE = 9  # the same, and: end after the call that runs now
    CANCEL = 10  # id: the number of the call to interrupt
    RECALL = 11  # give back the calls that are not begun
    # process -> driver
    RESULT = 16  # id: the call's number; STAMP, then a packed value
    RESULTS = 17  # id: the same; STAMP, then [(place or bytes in the store, references)]
    ITEM = 18  # id: the same; (index, place, references): one item of a generator
    ERROR = 19  # id: the same; STAMP, then a CallFailure
    RECORD = 20  # what emit() was given; id: how many were dropped so far
    SUBMIT = 21  # the fields of a TaskSpec
    PUT = 22  # (object, place, references)
    WANT = 23  # (objects, whether their values are wanted, or only READY)
    UNWANT = 24  # objects that were wanted
    COUNTS = 25  # [(id, +1 or -1)]: references and handles taken and dropped
    UNPIN = 26  # objects that are no longer viewed
    REQUEST = 27  # id: its number; (method, arguments)
    RETURNED = 28  # numbers of calls that were not begun
    CHECKPOINT = 29  # (sequence number of the last method, place, references)
    TAKEN = 30  # (object, generator): the one reader of the generator has got this result
    # driver -> fork server
    SPAWN = 32  # SpawnRequest, with the process's ends of its sockets
    SIGNAL = 33  # signal number, for the whole process group
    # fork server -> driver
    FORKED = 40  # pid
    NOT_FORKED = 41  # why
    EXITED = 42  # Exited
    SERVER_READY = 43  # Ready


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Configures the fork server, on its command line."""

    control_fd: int
    lock_fd: int
    lifeline_fd: int  # see `child_setup.signal_when_gone`
    arena_fd: int
    arena_bytes: int
    driver_pid: int
    directory: str
    preload: list[str]
    sys_path: list[str]


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """Says what a child sets right after the fork, before any user code."""

    title: str  # what ps shows of it
    environment: dict[str, str]  # the whole of it
    cores: tuple[int, ...]  # empty: the launcher's
    num_threads: int
    log: str
    directory: str  # working directory
    sys_path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Build:
    """Configures a process: as a worker of tasks, or, with a class, as an actor."""

    device: int
    namespace: str = ""
    actor: bytes = b""
    name: str = ""
    setup: bytes = b""  # a pickled function to call first
    cls: bytes = b""  # the class, pickled
    max_concurrency: int = 1
    checkpoint_every: int = 0  # methods
    restarts: int = 0
    state: bytes = b""  # the result of save(); empty: it lies in the object store
    sequence: int = 0  # of the last method in that state
    resources: Mapping[str, float] = field(default_factory=dict)  # that the actor holds
    gpu_ids: tuple[int | str, ...] = ()
    concurrency_groups: Mapping[str, int] = field(default_factory=dict)
    max_task_retries: int = -1


@dataclass(frozen=True, slots=True)
class Ready:
    """Says that the fork server has imported its modules."""

    pid: int
    loaded: tuple[str, ...]
    skipped: dict[str, str]  # module: why
    num_threads: int  # 1, or forking is not safe
    threaded_by: str  # the module whose import started threads
    import_s: float


@dataclass(frozen=True, slots=True)
class Exited:
    """Tells how one process ended."""

    exit_code: int | None
    signal: int | None
    died_s: float  # CLOCK_MONOTONIC: comparable between processes of one host


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Holds what a call, or the building of an actor, has raised."""

    cause: bytes  # the pickled exception; empty when it cannot be pickled
    traceback: str
    raised_s: float
