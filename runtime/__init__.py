"""Actors in processes of their own: start them, call them, stop them, and leave nothing behind."""

from .actor import emit, stop_requested
from .api import (
    ActorHandle,
    ActorMethod,
    Options,
    RemoteClass,
    dropped_records,
    get,
    init,
    is_initialized,
    kill,
    preloaded,
    records,
    remote,
    request_stop,
    run_directory,
    shutdown,
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
from .refs import ObjectRef

__all__ = [
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
    "dropped_records",
    "emit",
    "get",
    "init",
    "is_initialized",
    "kill",
    "preloaded",
    "records",
    "remote",
    "request_stop",
    "run_directory",
    "shutdown",
    "stop",
    "stop_requested",
    "wait",
]
