"""Turns what Ray raises into the errors of the runtime."""

from __future__ import annotations

from ray import exceptions

from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.errors import (
    ActorDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfResources,
    TaskCancelledError,
    WorkerDiedError,
    task_error,
)

from .actors import Fate
from .calls import Raised
from .keeper import KeeperClient


def error_of_get(keeper: KeeperClient, error: Exception, slot: Slot, actor: str) -> BaseException:
    """Returns what `get` raises; `actor` is Ray's id of the actor that was called, if one was."""
    cause: BaseException = error
    while isinstance(cause, exceptions.RayTaskError):
        cause = cause.cause
    if isinstance(cause, Raised):
        slot.fill(cause.failure, failed=True)
        call_error = slot.error()
        assert call_error is not None
        return call_error
    text = str(cause).strip()
    if isinstance(cause, exceptions.TaskCancelledError):
        return TaskCancelledError(f"{slot.call} was cancelled")
    if isinstance(cause, exceptions.RayActorError):
        id = cause.actor_id or actor
        name = slot.call.rsplit(".", 1)[0]
        return Fate(keeper, name, id).death(text) if id else ActorDiedError(name, reason=text)
    if isinstance(cause, exceptions.ObjectLostError):
        return ObjectLostError(slot.id, slot.call, text)
    if isinstance(cause, exceptions.ObjectStoreFullError | exceptions.OutOfDiskError):
        return ObjectStoreFullError(f"{slot.call}: {text}")
    if isinstance(cause, exceptions.TaskUnschedulableError | exceptions.ActorUnschedulableError):
        return OutOfResources(f"{slot.call}: {text}")
    if isinstance(cause, exceptions.RayError):
        return WorkerDiedError(slot.call, 0, 1, None, None, reason=text)
    return task_error(cause, str(error), slot.call)
