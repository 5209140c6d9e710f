"""Holds pending results: slots that the runtime fills, and users' references to them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime.errors import GetTimeoutError, NotRunningError, task_error
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.protocol import CallFailure

if TYPE_CHECKING:
    from gmi_drl.runtime.driver.driver import Driver
    from gmi_drl.runtime.driver.task import TaskSpec
    from gmi_drl.runtime.engines.ray.engine import RayEngine
    from gmi_drl.runtime.process.connection import Connection

PENDING: Final = 0
ELSEWHERE: Final = 1  # ready, with the value in the object store or the driver
HERE: Final = 2

_lock = threading.Lock()  # guards every slot's `state` and `_watchers`; never held for long
current: Driver | Connection | RayEngine | None = None  # the runtime of this process


def forget() -> None:
    """Drops the runtime after a fork, and the lock, which a thread of the parent may hold."""
    global current, _lock
    current, _lock = None, threading.Lock()


@dataclass(slots=True, eq=False, weakref_slot=True, repr=False)
class Slot:
    """A result as this process knows it. The runtime fills it; any thread may read it."""

    id: bytes
    call: str  # "actor.method" or "function", for messages
    task: TaskSpec | None = None  # the task that makes it; only in the driver
    state: int = PENDING
    failed: bool = False
    body: packing.Part = b""
    keep: Any = None  # owns the descriptors that belong to the body
    error_: BaseException | None = None
    _watchers: list[Callable[[], None]] | None = None
    # Used in the driver only.
    stored: bool = False
    seen: bool = False  # whether its error was reported to somebody
    held: int = 0  # references in this process
    nbytes: int = 0
    refs: Sequence[bytes] = ()  # ids of references in its value
    waiting: list[TaskSpec] | None = None  # tasks that have it among their arguments
    requesters: list[Any] | None = None  # processes that have asked for it

    @property
    def done(self) -> bool:
        """Returns whether the result, or an error, is ready."""
        return self.state != PENDING

    def fill(self, body: packing.Part, *, failed: bool = False, keep: Any = None) -> None:
        """Takes the packed answer, which each reader unpickles in its own thread."""
        self.body, self.failed, self.keep = body, failed, keep
        self._finish(HERE)

    def fail(self, error: BaseException) -> None:
        """Takes an error in place of an answer."""
        self.error_, self.failed = error, True
        self._finish(HERE)

    def resolve(self, value: Any) -> None:
        """Takes a value of this process as the answer; it is not copied."""
        self.error_ = value
        self._finish(HERE)

    def arrived(self) -> None:
        """Notes that the answer is ready, but not in this process."""
        self._finish(ELSEWHERE)

    def reset(self) -> None:
        """Notes that the answer was lost, and is being rebuilt."""
        with _lock:
            self.state, self.failed, self.stored, self.seen = PENDING, False, False, False
            self.body, self.error_, self.keep = b"", None, None

    def _finish(self, state: int) -> None:
        with _lock:
            if self.state == HERE:
                return
            self.state = state
            watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            watcher()

    def watch(self, watcher: Callable[[], None], here: bool = False) -> bool:
        """Calls `watcher` once the answer is ready (`here`: in this process); False if it is."""
        with _lock:
            if self.state == PENDING or (here and self.state != HERE and not self.stored):
                if self._watchers is None:
                    self._watchers = []
                self._watchers.append(watcher)
                return True
            return False

    @property
    def is_watched(self) -> bool:
        """Returns whether somebody will be told when the answer is ready."""
        return bool(self._watchers)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Takes back `watch`."""
        with _lock:
            if self._watchers and watcher in self._watchers:
                self._watchers.remove(watcher)

    def error(self) -> BaseException | None:
        """Returns its error as a fresh exception, or None. Only when the answer is here."""
        if not self.failed:
            return None
        self.seen = True
        if self.error_ is not None:
            return copy.copy(self.error_)
        failure: CallFailure = packing.unpack(self.body)
        cause = packing.unpack_exception(failure.cause)
        if cause is not None and not failure.traceback:  # an error of the runtime itself
            return cause
        return task_error(cause, failure.traceback, self.call, failure.raised_s)

    def value(self, deadline_s: float | None = None) -> Any:
        """Returns the result, unpickled anew at each call, or raises its error. Only when done."""
        if self.failed:
            error = self.error()
            assert error is not None
            try:
                raise error
            finally:
                del error  # else its traceback keeps all frames alive, and what they refer to
        if self.error_ is not None:
            return self.error_

        def label() -> str:
            return f"the result of {self.call}"

        if self.state == HERE:
            return packing.unpack(self.body, label, self.keep.fds if self.keep is not None else ())
        return packing.unpack(running().stored(self, deadline_s), label)


class ObjectRef:
    """A result that may not be there yet: give it to `get`, `wait`, or another call.

    It is kept as long as any process, call or other result has a reference to it.
    """

    __slots__ = ("__weakref__", "slot")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    @property
    def id(self) -> bytes:
        """Returns the object's id; its first 16 bytes are the id of the task that makes it."""
        return self.slot.id

    def future(self) -> Future[Any]:
        """Returns a future of `concurrent.futures` with its value, or what `get` raises."""
        future: Future[Any] = Future()
        runtime = running()
        if not runtime.reads:  # only a thread that waits fills slots
            threading.Thread(target=_fill, args=(future, self), daemon=True).start()
        elif self.slot.watch(lambda: _arrived.add(future, self)):
            runtime.notify([self.slot])
        else:
            _arrived.add(future, self)
        return future

    def __await__(self) -> Generator[Any, None, Any]:
        """Awaits the value."""
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        await arrival([self.slot])
        return await asyncio.to_thread(get_value, self)

    def __repr__(self) -> str:
        state = "done" if self.slot.done else "pending"
        return f"ObjectRef({self.slot.call}, {self.slot.id.hex()[:8]}, {state})"

    def __hash__(self) -> int:
        return hash(self.slot.id or id(self.slot))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectRef):
            return NotImplemented
        slot = self.slot
        return other.slot is slot or (slot.id != b"" and other.slot.id == slot.id)

    def __reduce__(self) -> tuple[Any, ...]:
        packed = packing.packing()
        if packed is None or not self.slot.id:
            raise TypeError(
                f"{self!r} cannot be pickled here: it means something only to this runtime. "
                "Pass it to a call, or pickle what get() returns for it."
            )
        packed.mention(self.slot.id, self)
        return received, (self.slot.id, self.slot.call)

    def __del__(self) -> None:
        if current is not None and self.slot.id:
            current.note(self.slot.id, -1, self.slot.stored or bool(self.slot.refs))


def received(id: bytes, call: str) -> ObjectRef:
    """Makes a reference that came with a value."""
    runtime = running()
    slot = runtime.slot(id, call)
    runtime.note(id, 1)
    return ObjectRef(slot)


async def arrival(slots: Sequence[Slot]) -> None:
    """Returns when the first of these slots is ready; other coroutines run meanwhile.

    It returns at once where no thread reads for others, as then a thread has to wait.
    """
    runtime = running()
    if not runtime.reads:
        return
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def waker() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(arrived.set)

    watched = [slot for slot in slots if slot.watch(waker)]
    try:
        if len(watched) == len(slots):
            runtime.notify(slots)
            await arrived.wait()
    finally:
        for slot in watched:
            slot.unwatch(waker)
        if len(watched) == len(slots):
            unwant(watched)


def unwant(slots: Sequence[Slot]) -> None:
    """Tells the runtime which of these are not waited for any more, by any thread."""
    left = [slot for slot in slots if not slot.state and not slot.is_watched]
    if left and current is not None:
        current.unwant(left)


def seconds(timeout: timedelta | float | None) -> float | None:
    """Returns a timeout in seconds; None stays None."""
    # Not by `|`, which makes a new union at each call. The ABC is the slowest.
    if timeout is None or isinstance(timeout, (float, int, Real)):
        return timeout
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    raise TypeError(f"timeout={timeout!r}; it must be seconds, a timedelta, or None.")


_WAKE_S: Final = 0.5  # between two checks for signals


class Gate:
    """Opens after a number of arrivals.

    It is a bare lock and a counter. Unlike in a Condition, a KeyboardInterrupt while waiting leaves
    no lock taken that the runtime's thread needs.
    """

    def __init__(self, number: int) -> None:
        self._arrivals = itertools.count(1)
        self._number = number
        self._shut = threading.Lock()
        self._shut.acquire()
        self.open = False

    def arrived(self) -> None:
        if next(self._arrivals) == self._number:
            self.open = True
            self._shut.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Returns True when it has opened, False when the time is up.

        It wakes up now and then, as a signal that comes just before the wait, or to another thread,
        does not end the wait, and its handler would not be called.
        """
        left_s = math.inf if timeout_s is None else max(0.0, timeout_s)
        deadline_s = time.monotonic() + left_s
        while not self._shut.acquire(timeout=min(left_s, _WAKE_S)):
            if (left_s := deadline_s - time.monotonic()) <= 0:
                return False
        return True


def wait_for(
    refs: Sequence[ObjectRef], num_returns: int, timeout: timedelta | float | None
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Waits until `num_returns` are done or the time is up: (so many done at most, others)."""
    limit_s = seconds(timeout)
    pending_now = [ref for ref in refs if not ref.slot.state]
    missing = num_returns - (len(refs) - len(pending_now))
    if missing > 0:
        if current is not None:
            current.want([ref.slot for ref in pending_now], False)
        gate = Gate(missing)
        try:
            for ref in pending_now:
                if not ref.slot.watch(gate.arrived):  # filled meanwhile
                    gate.arrived()
            _block(gate, limit_s)
        finally:
            for ref in pending_now:
                ref.slot.unwatch(gate.arrived)
            unwant([ref.slot for ref in pending_now])
    ready: list[ObjectRef] = []
    pending: list[ObjectRef] = []
    for ref in refs:
        (ready if ref.slot.state and len(ready) < num_returns else pending).append(ref)
    return ready, pending


def get_values(refs: Sequence[ObjectRef], timeout: timedelta | float | None) -> list[Any]:
    """Returns the values of `refs`; `timeout` is for all of them together."""
    limit_s = seconds(timeout)
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    absent = [ref.slot for ref in refs if ref.slot.state != HERE]
    if absent and current is not None:
        current.want(absent, True)
    try:
        return [_get(ref.slot, deadline_s, limit_s) for ref in refs]
    except BaseException:
        unwant(absent)  # those behind one that has failed, or is late
        raise


def get_value(ref: ObjectRef, timeout: timedelta | float | None = None) -> Any:
    """Returns the value of one reference; GetTimeoutError names the call that is late."""
    return get_values((ref,), timeout)[0]


def _get(slot: Slot, deadline_s: float | None, limit_s: float | None) -> Any:
    # In a loop, as a second notice that it is ready may come before the value.
    while slot.state != HERE:
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        gate = Gate(1)
        if not slot.watch(gate.arrived, here=True):
            break
        is_open = False
        try:
            is_open = _block(gate, left_s)
        finally:
            if not is_open:
                slot.unwatch(gate.arrived)
        if not is_open:
            if limit_s is None or current is None:
                raise NotRunningError(f"the runtime has ended before {slot.call} had answered.")
            raise GetTimeoutError(
                f"get timed out after {limit_s:g} s: {slot.call} has not answered. "
                "Give it more time, or stop it."
            )
    return slot.value(deadline_s)


def _block(gate: Gate, timeout_s: float | None) -> bool:
    if current is None:  # the runtime is gone, and has failed what was pending
        return gate.wait(0.0)
    return current.block(gate, timeout_s)


def running() -> Driver | Connection | RayEngine:
    """Returns the runtime of this process; NotRunningError if it has none."""
    if current is None:
        raise NotRunningError("the runtime is not running. Call gmi_drl.runtime.init() first.")
    return current


def _fill(future: Future[Any], ref: ObjectRef) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(get_value(ref))
    except BaseException as error:
        future.set_exception(error.with_traceback(None))  # its frames would keep the reference


class _Arrived:
    """Fills futures of ready results, in a thread that lives while there are any.

    Reading values from the store and calling callbacks may take long, and so must not happen in the
    thread that receives answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[tuple[Future[Any], ObjectRef]] = collections.deque()
        self._filling = False

    def add(self, future: Future[Any], ref: ObjectRef) -> None:
        with self._lock:
            self._waiting.append((future, ref))
            if not self._filling:
                self._filling = True
                threading.Thread(target=self._fill, name="gmi_drl-futures", daemon=True).start()

    def _fill(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._filling = False
                    return
                future, ref = self._waiting.popleft()
            _fill(future, ref)
            del future, ref  # else the last one stays alive


_arrived: Final = _Arrived()
