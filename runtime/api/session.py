"""Starts and ends the runtime of this process, at its exit at the latest."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl.runtime.errors import ActorRuntimeError, NotOnThisEngine
from gmi_drl.runtime.wire.protocol import Ready

from . import call_context, refs
from .options import check_names
from .refs import ObjectRef, get_value, running

if TYPE_CHECKING:
    from gmi_drl.runtime.driver.driver import Driver
    from gmi_drl.runtime.gcs.tables import Row

_changing = threading.RLock()
_STORE_SHARE = 0.3  # of the memory available at the start; it is allocated on use


def init(
    preload: Sequence[str] = (), *, num_cpus: float | None = None, num_gpus: float = 0,
    resources: Mapping[str, float] | None = None, devices: int = 1,
    object_store_bytes: int | None = None, gcs: Path | str | None = None, gcs_replicas: int = 0,
    namespace: str = "default", engine: str = "local", address: str | None = None,
    trusted: bool = False,
) -> None:  # fmt: skip
    """Starts the process that forks workers and actors, and returns at once.

    It imports the modules named in `preload` once, for all of them; one that does not import is
    skipped. `num_cpus` (default: the cores this process may use), `num_gpus` and `resources` are
    what calls can ask for, shared evenly among `devices` groups of cores. `object_store_bytes`
    bounds the memory of large values (default: 30 % of what is free); what does not fit goes to
    disk. `gcs` is where the control store's file is kept (default: a file that goes with the
    runtime); with `gcs_replicas` its tables are kept by chains of that many processes. Actors'
    names are looked for in `namespace` by default. `shutdown` ends it, at the latest with the
    interpreter.

    With `engine="ray"` calls run on the Ray cluster at `address`: host:port, or "local" for one of
    its own, which ends with the runtime. One without token authentication is refused, unless
    `trusted`.
    """
    # Not at the top, as workers import this module, too, and do not need it.
    from gmi_drl.runtime.driver.driver import Driver

    with _changing:
        if refs.current is not None:
            raise ActorRuntimeError(
                "init() was called before. Go on with this runtime, or call shutdown() first."
            )
        if not namespace:
            raise ValueError("namespace='': it is what actors' names are looked for in. Name one.")
        check_names(resources or {})
        if engine == "ray":
            capacity: dict[str, Any] = {
                "num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources,
                "object_store_bytes": object_store_bytes,
            }  # fmt: skip
            unavailable: dict[str, Any] = {
                "preload": preload, "gcs": gcs, "gcs_replicas": gcs_replicas,
                "devices": 0 if devices == 1 else devices,
            }  # fmt: skip
            if address != "local":
                unavailable |= capacity
            _join_ray(unavailable, address, trusted, namespace, capacity)
            return
        if engine != "local":
            raise ValueError(f'engine={engine!r}: there are "local" and "ray". Give one of these.')
        if address is not None or trusted:
            raise NotOnThisEngine(
                f"address={address!r}, trusted={trusted}: engine local is in this process. Leave "
                'them out, or give engine="ray".'
            )
        cores = sorted(os.sched_getaffinity(0))
        if num_cpus is None:
            num_cpus = len(cores)
        if isinstance(preload, str):
            raise TypeError(f"preload={preload!r}; it must be a list: [{preload!r}].")
        for name, value in {"devices": devices, "num_cpus": num_cpus, "num_gpus": num_gpus}.items():
            if not isinstance(value, Real):
                raise TypeError(f"{name}={value!r}; it must be a number.")
        if devices < 1 or num_cpus <= 0 or num_gpus < 0:
            raise ValueError(
                f"devices={devices}, num_cpus={num_cpus}, num_gpus={num_gpus}: give at least one "
                "device and some part of a CPU."
            )
        amounts = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
        share = {name: amount / devices for name, amount in amounts.items() if amount}
        groups = {index: tuple(cores[index::devices]) for index in range(devices)}
        refs.current = Driver(
            preload, {index: dict(share) for index in range(devices)},
            groups if 1 < devices <= len(cores) else {},
            object_store_bytes or _store_bytes(),
            None if gcs is None else Path(gcs), gcs_replicas=gcs_replicas, namespace=namespace,
        )  # fmt: skip
        call_context.set_default(None)


def _join_ray(
    unavailable: Mapping[str, Any], address: str | None, trusted: bool, namespace: str,
    capacity: Mapping[str, Any],
) -> None:  # fmt: skip
    for name, value in unavailable.items():
        if value:
            suffix = "" if address == "local" else " of a cluster that runs already"
            raise NotOnThisEngine(
                f"init({name}={value!r}): engine ray{suffix} does not have it. Leave it out."
            )
    if not address:
        raise ValueError(
            "engine='ray', address=None: name the cluster, as host:port, or \"local\" for one of "
            "this process's own. Ray's own choice may be a cluster that nobody meant."
        )
    try:
        from gmi_drl.runtime.engines.ray import start
    except ImportError as error:
        raise ActorRuntimeError(
            f"engine='ray': Ray cannot be imported ({error}). pip install 'gmi-drl[ray]'."
        ) from error
    refs.current = start(address, trusted=trusted, namespace=namespace, capacity=capacity)
    atexit.register(shutdown)  # again, so that it runs before those that Ray has registered now
    call_context.set_default(None)


def _store_bytes() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return max(1 << 26, int(int(line.split()[1]) * 1024 * _STORE_SHARE))
    return 1 << 30


def is_initialized() -> bool:
    """Returns whether the runtime runs."""
    return refs.current is not None


def shutdown(grace: timedelta = timedelta(seconds=1)) -> None:
    """Stops every actor, worker and the fork server; nothing is left. Twice is fine."""
    with _changing:
        if refs.current is None:
            return
        runtime = driver()
        try:
            if runtime.ready.done:  # else no actor was forked
                runtime.stop_actors(runtime.all_actors(), grace, "the runtime was shut down")
        finally:
            refs.current = None
            runtime.close()


def preloaded(timeout: timedelta | float | None = None) -> Ready:
    """Waits for the fork server's imports, and returns which they are."""
    ready: Ready = get_value(ObjectRef(driver().ready), timeout)
    return ready


def run_directory() -> Path:
    """Returns a private directory (0700) with a short path, removed with the runtime."""
    return _local("run_directory").server.directory


def keep_gcs(path: Path | str) -> None:
    """Moves the control store's file to `path`, where it stays."""
    _local("keep_gcs").gcs.move(Path(path))


def flush_gcs(timeout_s: float = 10.0) -> None:
    """Returns when all that was recorded is in the control store's file.

    GcsError where it cannot be written, TimeoutError if it takes longer than `timeout_s`.
    """
    runtime = _local("flush_gcs")
    runtime.loop.ask(lambda then: then(None))  # after this, rows of record_rows() are put
    runtime.gcs.flush(timeout_s)


def merge_gcs(path: Path | str, prefix: str) -> None:
    """Merges the control store at `path`, of a runtime that has ended, into this one's.

    Names of its tasks and actors, and texts of its events, begin with `prefix` here.
    """
    _local("merge_gcs").gcs.merge(Path(path), prefix)


def record_rows(rows: Sequence[Row]) -> None:
    """Puts rows into the control store without waiting."""
    runtime = _local("record_rows")

    def put() -> None:
        for row in rows:
            runtime.gcs.put(row)

    runtime.loop.post(put)  # no other thread may put rows


def bound_rows(row_class: type[Row], most: int) -> None:
    """Has the control store keep the `most` rows of a class that have the greatest ids."""
    _local("bound_rows").gcs.bound(row_class, most)


def driver() -> Any:
    """Returns the driver's runtime; raises an error in other processes."""
    runtime: Any = running()
    if not getattr(runtime, "is_driver", False):
        raise ActorRuntimeError("only the process that called init() can do this.")
    return runtime


def _local(what: str) -> Driver:
    """Returns the driver's runtime; NotOnThisEngine unless it is of engine local."""
    runtime = driver()
    if not hasattr(runtime, "server"):
        raise NotOnThisEngine(f"{what}(): engine ray does not have it; engine local does.")
    local: Driver = runtime
    return local


def _after_fork() -> None:
    global _changing
    if refs.current is not None and hasattr(refs.current, "forget"):
        with contextlib.suppress(OSError):
            refs.current.forget()
    _changing = threading.RLock()
    refs.forget()


atexit.register(shutdown)
os.register_at_fork(after_in_child=_after_fork)
