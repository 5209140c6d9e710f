"""Runs tasks and actors in processes of their own, and rebuilds their results when these are lost.

Ray's design (Moritz et al., OSDI 2018) on one machine; docs/runtime.md is the page for users. The
scheduler, the object store and the chains of replicas are pure state machines, tested without
processes: events in, instructions out.
"""

from . import util
from .api.actors import ActorHandle, ActorMethod, RemoteClass, get_actor
from .api.call_context import (
    Context,
    RuntimeContext,
    available_resources,
    cluster_resources,
    context,
    get_gpu_ids,
    get_runtime_context,
)
from .api.calls import (
    cancel,
    death,
    deaths,
    dropped_records,
    get,
    kill,
    log_tail,
    process_id,
    put,
    records,
    request_stop,
    stop,
    wait,
    write_stacks,
)
from .api.functions import RemoteFunction, remote
from .api.generators import ObjectRefGenerator
from .api.options import ActorOptions, MethodOptions, TaskOptions, method
from .api.refs import ObjectRef
from .api.session import (
    bound_rows,
    flush_gcs,
    init,
    is_initialized,
    keep_gcs,
    merge_gcs,
    preloaded,
    record_rows,
    run_directory,
    shutdown,
)
from .errors import (
    ActorDiedError,
    ActorRuntimeError,
    ForkServerError,
    GetTimeoutError,
    NameTakenError,
    NotOnThisEngine,
    NotRunningError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfResources,
    SerializationError,
    TaskCancelledError,
    TaskError,
    WorkerDiedError,
)
from .gcs.database import DamagedStoreError, GcsError
from .process.worker import Labelled, emit, label_records, set_title, stop_requested
from .store.memfd import Memfd
from .wire.protocol import THREAD_VARIABLES

__all__ = [
    "THREAD_VARIABLES", "ActorDiedError", "ActorHandle", "ActorMethod", "ActorOptions",
    "ActorRuntimeError", "Context", "DamagedStoreError", "ForkServerError", "GcsError",
    "GetTimeoutError", "Labelled", "Memfd", "MethodOptions", "NameTakenError",
    "NotOnThisEngine", "NotRunningError", "ObjectLostError", "ObjectRef", "ObjectRefGenerator",
    "ObjectStoreFullError", "OutOfResources", "RemoteClass", "RemoteFunction", "RuntimeContext",
    "SerializationError", "TaskCancelledError", "TaskError", "TaskOptions", "WorkerDiedError",
    "available_resources", "bound_rows", "cancel", "cluster_resources", "context", "death",
    "deaths", "dropped_records", "emit", "flush_gcs", "get", "get_actor", "get_gpu_ids",
    "get_runtime_context", "init", "is_initialized", "keep_gcs", "kill", "label_records",
    "log_tail", "merge_gcs", "method", "preloaded", "process_id", "put", "record_rows",
    "records", "remote", "request_stop", "run_directory", "set_title", "shutdown", "stop",
    "stop_requested", "util", "wait", "write_stacks",
]  # fmt: skip
