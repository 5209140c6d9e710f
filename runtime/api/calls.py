"""Waits for results, stores values, cancels calls, ends actors, and reads their records."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from gmi_drl.runtime import ids
from gmi_drl.runtime.errors import ActorDiedError, NotRunningError
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.protocol import Kind

from .actors import ActorHandle
from .call_context import context
from .generators import ObjectRefGenerator, wait_for_mixed
from .refs import ObjectRef, get_value, get_values, running, wait_for
from .session import driver, is_initialized

if TYPE_CHECKING:
    from gmi_drl.runtime.driver.processes import Actor
    from gmi_drl.runtime.engines.ray.actors import RayActor


@overload
def get(refs: ObjectRef, timeout: timedelta | float | None = None) -> Any: ...
@overload
def get(refs: Sequence[ObjectRef], timeout: timedelta | float | None = None) -> list[Any]: ...
def get(refs: ObjectRef | Sequence[ObjectRef], timeout: timedelta | float | None = None) -> Any:
    """Returns the result, or the list of results in the order of the references.

    Values are immutable: arrays are read-only views. It raises the call's exception (TaskError),
    ActorDiedError, or GetTimeoutError when `timeout` has passed for all of them together.
    """
    if isinstance(refs, ObjectRef):
        return get_value(refs, timeout)
    if isinstance(refs, Mapping) or not isinstance(refs, Iterable):
        raise TypeError(f"get() takes an ObjectRef or a list of them, not {refs!r}.")
    refs = list(refs)  # it may be a generator
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"get() takes an ObjectRef or a list of them, not {ref!r}.")
    return get_values(refs, timeout)


def wait(
    refs: Sequence[Any], num_returns: int = 1, timeout: timedelta | float | None = None
) -> tuple[list[Any], list[Any]]:
    """Waits for `num_returns` results; returns (ready, the others), both in the given order.

    An ObjectRefGenerator among the references is ready when its next result or its end is.
    """
    if isinstance(refs, Mapping) or not isinstance(refs, Iterable):
        raise TypeError(f"wait() takes a list of ObjectRefs, not {refs!r}.")
    refs = list(refs)
    if not refs:
        return [], []
    if not 0 < num_returns <= len(refs):
        raise ValueError(f"num_returns={num_returns}; it must be between 1 and {len(refs)}.")
    for ref in refs:
        if not isinstance(ref, ObjectRef | ObjectRefGenerator):
            raise TypeError(f"wait() takes a list of ObjectRefs, not {ref!r} in it.")
    if len(set(refs)) < len(refs):
        raise ValueError("wait() was given one ObjectRef twice. Give each of them once.")
    if any(isinstance(ref, ObjectRefGenerator) for ref in refs):
        return wait_for_mixed(refs, num_returns, timeout)
    return wait_for(refs, num_returns, timeout)


def put(value: Any) -> ObjectRef:
    """Stores a copy of a value for any number of calls; if it is lost it cannot be rebuilt."""
    if isinstance(value, ObjectRef):
        raise TypeError("put() takes a value, not an ObjectRef: that is what it would give.")
    runtime, caller = running(), context()
    packed = packing.pack(value, "the value given to put()")
    id = ids.result(ids.task(caller.task_id, next(caller.calls), b"put", b""))
    return ObjectRef(runtime.put(id, packed, "put()"))


def cancel(ref: ObjectRef | ObjectRefGenerator, force: bool = False) -> None:
    """Cancels the call of a reference, and its own calls; `get` raises TaskCancelledError.

    In a running call it is raised at the next Python instruction; `force` kills the process instead
    (not an actor's). A call that has ended stays as it is.
    """
    if not isinstance(ref, ObjectRef | ObjectRefGenerator):
        raise TypeError(f"cancel() takes an ObjectRef, not {ref!r}. Actors are ended by kill().")
    running().request("cancel", ref.id, force)


def process_id(handle: ActorHandle) -> int | None:
    """Returns the pid of the actor's process; None until it is forked."""
    return _actor(handle).pid


def death(handle: ActorHandle) -> ObjectRef:
    """Returns a reference that is ready when the actor has ended, with the ActorDiedError."""
    actor = _actor(handle)
    actor.death_seen = True
    return ObjectRef(actor.death_slot)


def deaths(handle: ActorHandle) -> list[ActorDiedError]:
    """Returns the deaths after which an actor was restarted, the oldest first."""
    return list(_actor(handle).deaths)


def log_tail(handle: ActorHandle) -> str:
    """Returns the last 40 lines the actor has printed; empty when its log is empty or gone."""
    return _actor(handle).log_tail()


def write_stacks(handle: ActorHandle, timeout: timedelta = timedelta(seconds=5)) -> bool:
    """Has the actor's process write the Python stacks of its threads to its log.

    Returns when they are there; False if it has no process, or they are not there by `timeout`.
    """
    return _actor(handle).write_stacks(timeout)


def request_stop(handle: ActorHandle) -> None:
    """Asks an actor to end: `stop_requested()` is true in it from now on."""
    if is_initialized():
        driver().ask_actor(_actor(handle), Kind.ASK_STOP)


def stop(
    handles: ActorHandle | Iterable[ActorHandle],
    grace: timedelta = timedelta(seconds=5),
    reason: str = "it was stopped",
    before_signals: Callable[[], None] | None = None,
) -> None:
    """Ends actors and returns when they are gone; they are not restarted.

    Each is asked (`stop_requested()`) and may finish the call it runs; queued calls fail. After
    `grace` its process group gets SIGTERM, and half a second later SIGKILL; `before_signals` is
    called before that, unless all have ended.
    """
    if is_initialized():
        actors = [_actor(handle) for handle in _handles(handles, "stop")]
        driver().stop_actors(actors, grace, reason, before_signals)


def kill(
    handles: ActorHandle | Iterable[ActorHandle],
    reason: str = "it was killed by kill()",
    no_restart: bool = True,
) -> None:
    """Ends actors and their descendants with SIGKILL, and returns when they are gone.

    With `no_restart=False` it returns at once, and an actor with `max_restarts` left is restarted.
    """
    if not is_initialized():
        return
    actors = _handles(handles, "kill")
    if no_restart and all(handle._actor is not None for handle in actors):
        driver().signal_actors([_actor(handle) for handle in actors], signal.SIGKILL, reason)
        return
    for handle in actors:
        running().request("kill", handle._id, no_restart, reason)


def records(handle: ActorHandle | None = None) -> list[Any]:
    """Returns the records of one actor, or all, since the last call, each actor's in order."""
    runtime = driver() if is_initialized() else None
    actors: Sequence[Any] = runtime.all_actors() if runtime is not None else []
    values = []
    for actor in actors if handle is None else [_actor(handle)]:
        for body in actor.take_records():
            values.append(packing.unpack(body, f"a record of {actor.name}"))
        if runtime is not None and actor.dead:
            runtime.drop_dead(actor)
    return values


def dropped_records(handle: ActorHandle) -> int:
    """Counts the records that were lost because the launcher did not fetch them in time."""
    return _actor(handle).dropped


def _handles(handles: ActorHandle | Iterable[ActorHandle], what: str) -> list[ActorHandle]:
    is_iterable = isinstance(handles, Iterable) and not isinstance(handles, ActorHandle)
    actors: list[Any] = list(handles) if is_iterable else [handles]
    for handle in actors:
        if not isinstance(handle, ActorHandle):
            raise TypeError(
                f"{what}() takes actors, not {handle!r}. A call is taken back by cancel()."
            )
    return actors


def _actor(handle: ActorHandle) -> Actor | RayActor:
    if handle._actor is None:
        raise NotRunningError(
            f"{handle!r}: only the process that called init() can do this with an actor."
        )
    return handle._actor
