"""Tasks and actors in processes of their own, with what they did kept so that it can be redone.

Ray's design (Moritz et al., OSDI 2018) on one machine; docs/runtime.md is the page for users.

- The process that calls `init` is the driver. One thread of it holds all tables (tasks, actors, who
  refers to what) and talks to workers and actors over sockets. The driver's own calls of actors go
  a shorter way, past that thread.
- The fork server, with one thread, forks every process; what it has imported is there in all.
- Decisions are pure state machines: events in, instructions out (`scheduler`, `store`,
  `chain_state`, `lifetimes`), tested without processes.
- Ids are derived from what is called with what (`ids`), so that what is run again makes the same
  ones: a replayed method finds the results of what it had called.
- The control store (`gcs`) hears of every change, off the critical path; lineage reads it when an
  object must be made again whose task nobody remembers.
- A lost result: its task is run again, and before it those of lost inputs (`lineage`). A dead
  actor: built again, and its answered calls since the last checkpoint run again (`actor_table`).
"""

from . import util
from .api.actors import ActorHandle, ActorMethod, RemoteClass, get_actor
from .api.call_context import Context, context
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
from .api.resources import (
    RuntimeContext,
    available_resources,
    cluster_resources,
    get_gpu_ids,
    get_runtime_context,
)
from .api.session import init, is_initialized, keep_gcs, preloaded, run_directory, shutdown
from .errors import (
    ActorDiedError,
    ActorRuntimeError,
    ForkServerError,
    GetTimeoutError,
    NameTakenError,
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
    "THREAD_VARIABLES",
    "ActorDiedError",
    "ActorHandle",
    "ActorMethod",
    "ActorOptions",
    "ActorRuntimeError",
    "Context",
    "DamagedStoreError",
    "ForkServerError",
    "GcsError",
    "GetTimeoutError",
    "Labelled",
    "Memfd",
    "MethodOptions",
    "NameTakenError",
    "NotRunningError",
    "ObjectLostError",
    "ObjectRef",
    "ObjectRefGenerator",
    "ObjectStoreFullError",
    "OutOfResources",
    "RemoteClass",
    "RemoteFunction",
    "RuntimeContext",
    "SerializationError",
    "TaskCancelledError",
    "TaskError",
    "TaskOptions",
    "WorkerDiedError",
    "available_resources",
    "cancel",
    "cluster_resources",
    "context",
    "death",
    "deaths",
    "dropped_records",
    "emit",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "keep_gcs",
    "kill",
    "label_records",
    "log_tail",
    "method",
    "preloaded",
    "process_id",
    "put",
    "records",
    "remote",
    "request_stop",
    "run_directory",
    "set_title",
    "shutdown",
    "stop",
    "stop_requested",
    "util",
    "wait",
    "write_stacks",
]
