"""Runs tasks and actors in processes of their own, and can do again what they did when it is lost.

Ray's design (Moritz et al., OSDI 2018) on one machine; docs/runtime.md is the page for users.

- `api`: what users call: `remote`, `get`, `wait`, `put`, actor handles, references, options.
- `driver`: the process that calls `init`. One thread holds all tables (tasks, actors,
  objects, who refers to what) and talks to the other processes over sockets. A lost result is
  computed again from its lineage; a dead actor is built again, and its answered calls since the
  last checkpoint run again.
- `scheduler`: decides which task runs on which device and worker. Like the object store and the
  chains of replicas it is a pure state machine, tested without processes: events in, instructions
  out.
- `store`: the object store: large values in shared memory, and on disk when that is full.
- `gcs`: the global control store, which records every change in an SQLite file, off the critical
  path; lineage reads it for tasks that nobody remembers.
- `process`: the fork server, which forks every process and has imported what they need, and the
  inside of a worker or an actor.
- `wire`: the messages between the processes, and values as bytes.
- `util`: Ray's utilities on top: `ActorPool`, `Queue`, the lists of actors.

Ids are derived from what is called with what (`ids`), so what is run again makes the same ones.
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
    "THREAD_VARIABLES", "ActorDiedError", "ActorHandle", "ActorMethod", "ActorOptions",
    "ActorRuntimeError", "Context", "DamagedStoreError", "ForkServerError", "GcsError",
    "GetTimeoutError", "Labelled", "Memfd", "MethodOptions", "NameTakenError", "NotRunningError",
    "ObjectLostError", "ObjectRef", "ObjectRefGenerator", "ObjectStoreFullError", "OutOfResources",
    "RemoteClass", "RemoteFunction", "RuntimeContext", "SerializationError", "TaskCancelledError",
    "TaskError", "TaskOptions", "WorkerDiedError", "available_resources", "cancel",
    "cluster_resources", "context", "death", "deaths", "dropped_records", "emit", "get",
    "get_actor", "get_gpu_ids", "get_runtime_context", "init", "is_initialized", "keep_gcs", "kill",
    "label_records", "log_tail", "method", "preloaded", "process_id", "put", "records", "remote",
    "request_stop", "run_directory", "set_title", "shutdown", "stop", "stop_requested", "util",
    "wait", "write_stacks",
]  # fmt: skip
