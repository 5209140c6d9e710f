"""Defines what the runtime raises, as exceptions that can be sent between processes.

RuntimeError
  ActorRuntimeError
    NotRunningError       init() was not called, or shutdown() was
    NotOnThisEngine       the engine that was given to init() does not have it
    ForkServerError       the process that forks actors could not start, or died
    SerializationError    a value cannot be pickled, or not be rebuilt on the other side
    GetTimeoutError       (also TimeoutError) a result was not there by the deadline
    ActorDiedError        the process of the actor ended before it answered
    WorkerDiedError       the process that ran a task ended, as often as it was tried
    TaskError             the call raised; also an instance of the class that was raised there
    TaskCancelledError    the call was cancelled
    NameTakenError        (also ValueError) an actor that lives has this name
    ObjectLostError       a value is gone and cannot be made again
    OutOfResources        no device has what a call wants
    ObjectStoreFullError  (also MemoryError) a value does not fit into the object store
"""

from __future__ import annotations

import dataclasses
import signal as _signal
import types
from dataclasses import dataclass
from typing import Any

from gmi_drl.errors import GmiDrlError

_LONGEST_TEXT = 1 << 15


class ActorRuntimeError(GmiDrlError, RuntimeError):
    """Base of the errors of `gmi_drl.runtime` itself."""


class NotRunningError(ActorRuntimeError):
    """The runtime is not running in this process."""


class NotOnThisEngine(ActorRuntimeError):
    """The engine that was given to `init` does not have what was asked for; the text names it."""


class ForkServerError(ActorRuntimeError):
    """The process that forks the actors could not start, cannot fork, or died."""


class SerializationError(ActorRuntimeError, TypeError):
    """A value cannot be sent between processes; the text names the value and the reason."""


class GetTimeoutError(ActorRuntimeError, TimeoutError):
    """A result was not there by the deadline; the text names the call that is late."""


class TaskCancelledError(ActorRuntimeError):
    """The call was cancelled, before it began or while it ran."""


class NameTakenError(ActorRuntimeError, ValueError):
    """A living actor has the name that another one was to get."""


class OutOfResources(ActorRuntimeError):
    """No device has, even when idle, what a call wants: value, rule, remedy."""


class ObjectStoreFullError(ActorRuntimeError, MemoryError):
    """A value does not fit into the object store; the text says what fills it."""


@dataclass(eq=False, repr=False)
class ObjectLostError(ActorRuntimeError):
    """A value is lost and cannot be rebuilt; the text says which, why, and what would help."""

    id: bytes
    call: str
    reason: str

    def __str__(self) -> str:
        label = f"the result of {self.call}" if self.call else f"object {self.id.hex()[:12]}"
        return f"{label} is lost: {self.reason}"


@dataclass(eq=False, repr=False)
class WorkerDiedError(ActorRuntimeError):
    """The process that ran a task ended before the task was done, `attempts` times.

    `exit_code` or `signal` says how it ended the last time; `reason` is set when it was ended by
    something other than itself.
    """

    call: str
    pid: int
    attempts: int
    exit_code: int | None
    signal: int | None
    log_tail: str = ""
    reason: str = ""

    def __str__(self) -> str:
        how = exit_text(self.exit_code, self.signal) + (f": {self.reason}" if self.reason else "")
        times = f"; it was tried {self.attempts} times" if self.attempts > 1 else ""
        return f"the worker of {self.call} (pid {self.pid}) {how}{times}{tail_text(self.log_tail)}"


def truncate(text: str) -> str:
    """Shortens a text in the middle, so that it can be sent."""
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    left_out = f"{len(text) - 2 * half:,} of {len(text):,} characters are left out here"
    return f"{text[:half]}\n... {left_out} ...\n{text[-half:]}"


def truncate_texts(error: BaseException) -> None:
    """Shortens the texts of an exception."""
    error.args = tuple(_truncate_any(value) for value in error.args)
    for name, value in vars(error).items():
        vars(error)[name] = _truncate_any(value)


def _truncate_any(value: Any) -> Any:
    if isinstance(value, str):
        return truncate(value)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):  # notes
        return [truncate(text) for text in value]
    return value


def exit_text(exit_code: int | None, signal: int | None) -> str:
    """Tells how a process ended: `exited with code 3`, `was killed by SIGSEGV`."""
    if signal is not None:
        try:
            return f"was killed by {_signal.Signals(signal).name}"
        except ValueError:
            return f"was killed by signal {signal}"
    if exit_code is not None:
        return f"exited with code {exit_code}"
    return "ended"


def tail_text(log_tail: str) -> str:
    """Returns the end of a log as a block to put under an error."""
    if not log_tail.strip():
        return "\n  its log is empty"
    lines = log_tail.rstrip("\n").splitlines()
    body = "\n".join(f"  | {line}" for line in lines)
    extent = "line" if len(lines) == 1 else f"{len(lines)} lines"
    return f"\n  the last {extent} of its log:\n{body}"


@dataclass(eq=False, repr=False)
class ActorDiedError(ActorRuntimeError):
    """The actor's process ended before this call was answered, or had ended before it was made.

    Without `exit_code` and `signal` it never started.
    """

    name: str
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    log_tail: str = ""  # the last 40 lines of its output
    reason: str = ""  # if it was ended by something other than itself
    cause: BaseException | None = None  # if its `__init__` raised
    died_s: float = 0.0  # on the host's monotonic clock

    def __post_init__(self) -> None:
        self.__cause__ = self.cause

    def __str__(self) -> str:
        who = f"actor {self.name}" + (f" (pid {self.pid})" if self.pid else "")
        if self.cause is not None:
            return f"{who} could not be built: {self.cause}"
        return f"{who} {self.how()}{'' if self.reason else tail_text(self.log_tail)}"

    @staticmethod
    def given_up(call: str, limit: int) -> str:
        """Returns the reason of the error of a call that was running at too many crashes."""
        return (
            f"{call} was running, and max_task_retries={limit} of it are used up. The actor was "
            "restarted, and goes on without this call"
        )

    def how(self) -> str:
        """Tells how the actor ended, and why if that is known."""
        how = exit_text(self.exit_code, self.signal)
        if not self.reason:
            return how
        if self.exit_code == 0:
            return f"ended: {self.reason}"
        return f"{how}: {self.reason}" if how != "ended" else f"is gone: {self.reason}"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return _died, (*fields[:6], _pack(self.cause), self.died_s)


class TaskError(ActorRuntimeError):
    """A call has raised. `except ValueError` catches it, too, if the call raised a ValueError.

    `cause` is the original exception (None when it could not be pickled), whose attributes are here
    as well; `raised_s` is a time on the host's monotonic clock.
    """

    cause: BaseException | None
    remote_traceback: str
    call: str
    raised_s: float

    def __str__(self) -> str:
        return f"{self.call} raised\n{self.remote_traceback.rstrip()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _task_error, (_pack(self.cause), self.remote_traceback, self.call, self.raised_s)


def task_error(
    cause: BaseException | None, remote_traceback: str, call: str, raised_s: float = 0.0
) -> TaskError:
    """Makes the TaskError of one call, of a class that also derives from the cause's class."""
    origin = cause
    while isinstance(origin, TaskError):  # a nested call has raised it
        origin = origin.cause
    error = _dual(origin) if isinstance(origin, Exception) else TaskError()
    error.cause = cause
    error.remote_traceback = remote_traceback
    error.call = call
    error.raised_s = raised_s
    error.__cause__ = cause
    return error


def _dual(cause: Exception) -> TaskError:
    origin = type(cause)
    try:
        # The original's __init__ is not run: its attributes are copied instead.
        members = {
            "__init__": lambda *_, **__: None, "__module__": __name__, "__qualname__": "TaskError",
        }  # fmt: skip
        dual_class = type(f"TaskError({origin.__name__})", (TaskError, origin), members)
        new = origin.__new__
        if new is MemoryError.__new__:  # Python refuses it for a class that is a RuntimeError first
            new = RuntimeError.__new__
        error: TaskError = new(dual_class, *cause.args)
    except TypeError:  # the class is final, or its __new__ needs other arguments
        return TaskError()
    error.args = cause.args
    for base in origin.__mro__:
        for name, member in vars(base).items():
            is_slot = isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType)
            if is_slot and not name.startswith("_") and name not in ("args",):
                try:
                    setattr(error, name, getattr(cause, name))
                except (AttributeError, TypeError):
                    continue
    error.__dict__.update(vars(cause))
    return error


# Exceptions are often not picklable; causes are packed in the form that always works.


def _pack(cause: BaseException | None) -> bytes:
    from .wire.packing import pack_exception

    return b"" if cause is None else pack_exception(cause)


def _task_error(cause: bytes, *rest: Any) -> TaskError:
    from .wire.packing import unpack_exception

    return task_error(unpack_exception(cause), *rest)


def _died(*fields: Any) -> ActorDiedError:
    from .wire.packing import unpack_exception

    values = list(fields)
    values[6] = unpack_exception(values[6])
    return ActorDiedError(*values)
