"""Results that are on their way: slots that the runtime fills, and the references users hold."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from . import packing, wire
from .errors import ActorRuntimeError, GetTimeoutError, task_error
from .protocol import Failure

_lock = threading.Lock()  # guards every slot's `done` and `_watchers`; never held for long
_unpickling = threading.RLock()  # one thread rebuilds a result, others wait for it


class Slot:
    """One result to be. Filled once, from the runtime's thread; read from any."""

    __slots__ = ("_message", "_result", "_watchers", "call", "done", "failed")

    def __init__(self, call: str) -> None:
        self.call = call  # "actor.method", for messages
        self.done = False
        self.failed = False
        self._message: wire.Message | None = None
        self._result: Any = None
        self._watchers: list[Callable[[], None]] = []

    def fill(self, message: wire.Message | None, *, failed: bool = False) -> None:
        """The answer came; it is unpickled by whoever wants it, in their thread."""
        self._message, self.failed = message, failed
        self._finish()

    def resolve(self, value: Any) -> None:
        """The answer is a value of this process."""
        self._result = value
        self._finish()

    def fail(self, error: ActorRuntimeError) -> None:
        """There will be no answer."""
        self._result, self.failed = error, True
        self._finish()

    def _finish(self) -> None:
        with _lock:
            if self.done:
                return
            self.done = True
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()

    def watch(self, watcher: Callable[[], None]) -> bool:
        """Calls `watcher` once when the slot is filled; False if it is filled already."""
        with _lock:
            if not self.done:
                self._watchers.append(watcher)
            return not self.done

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Takes back `watch`."""
        with _lock:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def error(self) -> ActorRuntimeError | None:
        """Why it failed; None if it did not. Only when done."""
        return self._value() if self.failed else None

    def value(self) -> Any:
        """The result, or raises what went wrong. Only when done."""
        value = self._value()
        if self.failed:
            raise value
        return value

    def _value(self) -> Any:
        with _unpickling:
            return self._unpickled()

    def _unpickled(self) -> Any:
        message = self._message
        if message is not None:
            if self.failed:
                failure: Failure = message.load()
                self._result = _remote_error(failure, self.call)
            elif message.empty:
                self._result = None
            else:
                self._result = message.load(f"the result of {self.call}")
            self._message = None
        return self._result


def _remote_error(failure: Failure, call: str) -> ActorRuntimeError:
    cause = packing.unpack_exception(failure.cause)
    return task_error(cause, failure.traceback, call, failure.raised_s)


class ObjectRef:
    """A result that may not be there yet: give it to `get` or `wait`."""

    __slots__ = ("__weakref__", "slot")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    def __repr__(self) -> str:
        return f"ObjectRef({self.slot.call}, {'done' if self.slot.done else 'pending'})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{self!r} cannot be sent to an actor. Send what get() returns for it")


def seconds(timeout: timedelta | float | None) -> float | None:
    """A timeout in seconds; None stays None."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


class _Gate:
    """Opens after a number of arrivals.

    A bare lock and a counter: a KeyboardInterrupt while waiting leaves no lock taken that the
    runtime's thread needs, which it might inside a Condition.
    """

    def __init__(self, number: int) -> None:
        self._arrivals = itertools.count(1)
        self._number = number
        self._shut = threading.Lock()
        self._shut.acquire()

    def arrived(self) -> None:
        if next(self._arrivals) == self._number:
            self._shut.release()

    def wait(self, timeout_s: float | None) -> bool:
        """True when it has opened; False when the time is up."""
        return self._shut.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


def wait_for(
    refs: Sequence[ObjectRef], num_returns: int, timeout: timedelta | float | None
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Waits until `num_returns` of `refs` are done or the time is up: (done, not done), in order.

    The first list has at most `num_returns` entries.
    """
    pending_now = [ref for ref in refs if not ref.slot.done]
    missing = num_returns - (len(refs) - len(pending_now))
    if missing > 0:
        gate = _Gate(missing)
        try:
            for ref in pending_now:
                if not ref.slot.watch(gate.arrived):  # filled since we looked
                    gate.arrived()
            gate.wait(seconds(timeout))
        finally:
            for ref in pending_now:
                ref.slot.unwatch(gate.arrived)
    ready: list[ObjectRef] = []
    pending: list[ObjectRef] = []
    for ref in refs:
        (ready if ref.slot.done and len(ready) < num_returns else pending).append(ref)
    return ready, pending


def get_value(ref: ObjectRef, deadline_s: float | None, limit_s: float | None) -> Any:
    """The value of one reference, waiting until the deadline; GetTimeoutError names the call."""
    if not ref.slot.done:
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        gate = _Gate(1)
        if ref.slot.watch(gate.arrived) and not gate.wait(left_s):
            ref.slot.unwatch(gate.arrived)
            raise GetTimeoutError(
                f"get timed out after {limit_s:g} s: {ref.slot.call} has not answered. "
                "Give it more time, or stop the actor."
            )
    return ref.slot.value()
