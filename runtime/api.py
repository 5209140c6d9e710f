"""What users call: wait for results, end actors, read what they emit."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, overload

from .actors import ActorHandle
from .ending import DEATH_S, signal_links, stop_links
from .protocol import Kind
from .refs import ObjectRef, get_value, seconds, wait_for
from .session import current


@overload
def get(refs: ObjectRef, timeout: timedelta | float | None = None) -> Any: ...
@overload
def get(refs: Sequence[ObjectRef], timeout: timedelta | float | None = None) -> list[Any]: ...
def get(refs: ObjectRef | Sequence[ObjectRef], timeout: timedelta | float | None = None) -> Any:
    """The result, or the list of results in the order of the references.

    Raises what the call raised (TaskError), ActorDiedError, or GetTimeoutError when `timeout` has
    passed for all of them together.
    """
    limit_s = seconds(timeout)
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    if isinstance(refs, ObjectRef):
        return get_value(refs, deadline_s, limit_s)
    return [get_value(ref, deadline_s, limit_s) for ref in refs]


def wait(
    refs: Sequence[ObjectRef], num_returns: int = 1, timeout: timedelta | float | None = None
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Waits for the first `num_returns` results: (ready, the others), both in the given order."""
    if not 0 < num_returns <= len(refs):
        raise ValueError(f"num_returns={num_returns}; it must be between 1 and {len(refs)}.")
    return wait_for(refs, num_returns, timeout)


def process_id(handle: ActorHandle) -> int | None:
    """The pid of the actor's process; None until it is forked."""
    return handle._link.pid


def death(handle: ActorHandle) -> ObjectRef:
    """A reference that is ready when the actor has ended; its value is the ActorDiedError."""
    return ObjectRef(handle._link.death_slot)


def log_tail(handle: ActorHandle) -> str:
    """The last 40 lines the actor has printed; empty when its log is empty or gone."""
    return handle._link.log_tail()


def request_stop(handle: ActorHandle) -> None:
    """Only asks: `stop_requested()` is true in the actor from now on."""
    if (runtime := current()) is not None:
        runtime.ask(handle._link, Kind.ASK_STOP)


def stop(
    handles: ActorHandle | Iterable[ActorHandle],
    grace: timedelta = timedelta(seconds=5),
    reason: str = "it was stopped",
) -> None:
    """Ends actors and returns when they are gone.

    Each is asked (`stop_requested()`) and may finish the call it runs; queued calls fail. After
    `grace` its process group gets SIGTERM, and half a second later SIGKILL.
    """
    if (runtime := current()) is not None:
        actors = [handles] if isinstance(handles, ActorHandle) else list(handles)
        stop_links(runtime, [actor._link for actor in actors], grace, reason)


def kill(
    handles: ActorHandle | Iterable[ActorHandle], reason: str = "it was killed by kill()"
) -> None:
    """Ends actors with SIGKILL, with all they have started, and returns when they are gone."""
    if (runtime := current()) is not None:
        actors = [handles] if isinstance(handles, ActorHandle) else list(handles)
        signal_links(runtime, [actor._link for actor in actors], signal.SIGKILL, DEATH_S, reason)


def records(handle: ActorHandle | None = None) -> list[Any]:
    """What actors have emitted since the last call, of one or of all, each actor's in order."""
    runtime = current()
    everyone = runtime.links() if runtime is not None else []
    links = everyone if handle is None else [handle._link]
    found = []
    for link in links:
        with contextlib.suppress(IndexError):
            while True:
                found.append(link.records.popleft().load(f"a record of {link.name}"))
        if runtime is not None:
            runtime.drained(link)
    return found


def dropped_records(handle: ActorHandle) -> int:
    """How many of its records were lost because the launcher did not fetch them in time."""
    return handle._link.dropped
