"""Actors in processes of their own: start them, call them, stop them, and leave nothing behind."""

from .actor import emit, stop_requested
from .actors import ActorHandle, ActorMethod, Options, RemoteClass, remote
from .api import (
    death,
    dropped_records,
    get,
    kill,
    log_tail,
    process_id,
    records,
    request_stop,
    stop,
    wait,
)
from .errors import (
    ActorDiedError,
    ActorRuntimeError,
    ForkServerError,
    GetTimeoutError,
    NotRunningError,
    SerializationError,
    TaskError,
)
from .memfd import Memfd
from .protocol import THREAD_VARIABLES
from .refs import ObjectRef
from .session import init, is_initialized, preloaded, run_directory, shutdown

__all__ = [
    "THREAD_VARIABLES",
    "ActorDiedError",
    "ActorHandle",
    "ActorMethod",
    "ActorRuntimeError",
    "ForkServerError",
    "GetTimeoutError",
    "Memfd",
    "NotRunningError",
    "ObjectRef",
    "Options",
    "RemoteClass",
    "SerializationError",
    "TaskError",
    "death",
    "dropped_records",
    "emit",
    "get",
    "init",
    "is_initialized",
    "kill",
    "log_tail",
    "preloaded",
    "process_id",
    "records",
    "remote",
    "request_stop",
    "run_directory",
    "shutdown",
    "stop",
    "stop_requested",
    "wait",
]
