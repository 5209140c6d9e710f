"""Connects a process to the driver: it sends, receives, and decides which thread reads.

There is no thread only for reading: a thread that waits for something reads, and hands over to
another waiter when it has its result. Urgent messages to a running call (a stop, a cancellation)
come over a second socket, to a thread that sleeps otherwise.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
import pickle
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime import ids
from gmi_drl.runtime.api import call_context
from gmi_drl.runtime.api.options import check_host
from gmi_drl.runtime.api.refs import HERE, Gate, Slot
from gmi_drl.runtime.driver.task import TaskSpec
from gmi_drl.runtime.errors import ActorRuntimeError, TaskCancelledError
from gmi_drl.runtime.store.arena import Arena
from gmi_drl.runtime.wire import framing, packing
from gmi_drl.runtime.wire.closures import Code
from gmi_drl.runtime.wire.protocol import Kind, Place

from .sender import MessageSender
from .spin import Spin

if TYPE_CHECKING:
    from gmi_drl.runtime.driver.driver import Driver

_ROUND_TRIP_S: Final = 0.01  # to the driver and back; a shorter wait asks it first
INLINE_BYTES: Final = 128 << 10  # larger values go to the object store


class Connection:
    """Is the runtime of a process that the driver has started."""

    def __init__(self, sock: socket.socket, urgent: socket.socket, arena: Arena) -> None:
        self.arena = arena
        self.namespace = ""  # of the runtime; known from Build on
        self.sender = MessageSender(sock)
        self.stop = threading.Event()
        self.closing = False
        self.reads = False  # whether a thread always reads, so that slots fill by themselves
        self.calls: collections.deque[framing.Message] = collections.deque()
        self.build: framing.Message | None = None
        self.functions: dict[bytes, Any] = {}
        self.running = 0  # the number of the call that may be cancelled, in the main thread
        self.cancelled: set[int] = set()  # numbers of calls
        # Called with the number of a call to cancel that may be running.
        self.cancel: Callable[[int], object] = self._interrupt_main
        self._sock, self._urgent = sock, urgent
        self._reader = framing.Reader()
        self._reading = threading.Lock()  # held by whoever reads `_sock`
        self._reader_ident = 0  # the thread that does; 0: not known yet
        self._main = threading.main_thread().ident or 0
        self._changed = threading.Condition()  # for threads that wait while another one reads
        self._waiters = 0
        self._ended = False
        # Those of which there are references here.
        self._slots: weakref.WeakValueDictionary[bytes, Slot] = weakref.WeakValueDictionary()
        self._slots_lock = threading.RLock()  # a finalizer may ask for a slot meanwhile
        # Those that will call a watcher. It may be all that refers to a future, and to the slot.
        self._notified: set[Slot] = set()
        self._replies: dict[int, tuple[bool, Any]] = {}
        self._unwanted: dict[int, tuple[str, bytes]] = {}  # requests of calls that were cancelled
        self._requests = itertools.count(1)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        for fd in (sock.fileno(), self._wake):
            self._poll.register(fd, select.POLLIN)
        self._spin = Spin()
        self._anything = functools.partial(self._poll.poll, 0)
        self._known: set[bytes] = set()  # functions that this process has sent to the driver
        self.note = self.sender.note

    def listen(self) -> None:
        """Begins to read the urgent socket; called in the main thread."""
        signal.signal(signal.SIGUSR1, self._interrupt)
        threading.Thread(target=self._read_urgent, name="gmi_drl-hear", daemon=True).start()

    def next_call(self) -> framing.Message | None:
        """Returns the next call; None when this process is to end."""
        calls = self.calls
        if not calls and not self.closing:
            self.sender.send_noted()
            self.pump(lambda: bool(calls) or self.closing, None)
        if self.closing:
            return None
        try:
            return calls.popleft()
        except IndexError:  # given back to the driver in between
            return self.next_call()

    # What references need, and what the functions of the API call.

    def slot(self, id: bytes, call: str) -> Slot:
        with self._slots_lock:
            return self._slots.get(id) or self._slots.setdefault(id, Slot(id, call))

    def want(self, slots: Sequence[Slot], values: bool) -> None:
        ids = [slot.id for slot in slots if slot.state != HERE and slot.id]
        if ids:
            self._send(Kind.WANT, 0, (ids, values))

    def block(self, gate: Gate, timeout_s: float | None) -> bool:
        if self.pump(lambda: gate.open, timeout_s):
            return True
        if timeout_s is not None and timeout_s < _ROUND_TRIP_S:
            self.request("nothing")  # when this is answered, all that is ready has been told
        return gate.open

    def notify(self, slots: Sequence[Slot]) -> None:
        """Asks for values without waiting; the thread that reads fills their slots."""
        for slot in slots:
            self._notified.add(slot)
            if slot.done:  # filled meanwhile
                self._notified.discard(slot)
        self.want(slots, True)

    def taken(self, id: bytes, generator: bytes) -> None:
        """Tells the driver that the one reader of a generator has got a result."""
        self._send(Kind.TAKEN, 0, (id, generator))

    check = staticmethod(check_host)

    def unwant(self, slots: Sequence[Slot]) -> None:
        """Takes back `want` and `notify`."""
        self._notified.difference_update(slots)
        if ids := [slot.id for slot in slots if slot.id]:
            self._send(Kind.UNWANT, 0, ids)

    def stored(self, slot: Slot, deadline_s: float | None) -> packing.Part:
        place: Place = self.request("pin", slot.id)
        return self.view(slot.id, place)

    def view(self, id: bytes, place: Place) -> packing.Part:
        """Returns the bytes at a place; in the store they stay pinned as long as the view lives."""
        if isinstance(place, bytes):
            return place
        return packing.view(self.arena, place, lambda: self.sender.unpin(id))

    def submit(self, task: TaskSpec, code: Code | None = None) -> list[Slot]:
        """Submits a call, of a function with its code, which is sent to the driver once.

        Returns the slots of its results, each counted as one reference.
        """
        if code is not None and code.id not in self._known:
            self._known.add(code.id)
            self._send(Kind.FUNCTION, 0, (code.id, task.name, code.body))
        frame = framing.frame(Kind.SUBMIT, 0, task.packed())
        slots = [self.slot(id, task.name) for id in task.result_ids()]
        for slot in slots:
            self.note(slot.id, 1)
        self.sender.send(frame)
        if task.body_id:
            self.note(task.body_id, -1)  # the call holds it now
        return slots

    def start_actor(self, creation: TaskSpec, **details: Any) -> None:
        """Has the driver start an actor, counted as one handle."""
        self.note(creation.id, 1)
        try:
            self.request("start", creation.fields(), details)
        except BaseException:
            self.note(creation.id, -1)
            raise
        finally:
            if creation.body_id:
                self.note(creation.body_id, -1)

    def actor(self, id: bytes) -> None:
        """Returns None, as only the driver knows more of an actor than its name."""

    def put(self, id: bytes, packed: packing.Packed, what: str) -> Slot:
        """Stores a value with the driver, and returns its slot."""
        slot = self.slot(id, what)
        self.note(id, 1)
        try:
            place = place_value(self, id, packed, what)
        except BaseException:
            self.note(id, -1)
            raise
        self._send(Kind.PUT, 0, (id, place, packed.refs))
        if isinstance(place, bytes):
            slot.fill(place)
        else:
            slot.stored = True
            slot.arrived()
        return slot

    def request(self, method: str, *args: Any) -> Any:
        """Makes a request of the driver; returns its answer, or raises it if that is an error."""
        number = next(self._requests)
        try:
            self._send(Kind.REQUEST, number, (method, args))
            if not self.pump(lambda: number in self._replies, None):
                raise ActorRuntimeError("the driver is gone")
            failed, value = self._replies.pop(number)
        except TaskCancelledError:
            self._unwanted[number] = method, args[0] if args else b""
            self._drop_unwanted(number)
            raise
        if failed:
            try:
                raise value
            finally:
                del value  # else its traceback keeps this frame alive, and those it was called by
        return value

    def _drop_unwanted(self, number: int) -> None:
        """Gives back what a request has got, once it is answered, if its call was cancelled."""
        if number not in self._replies or (request := self._unwanted.pop(number, None)) is None:
            return
        method, id = request
        failed, value = self._replies.pop(number)
        if failed or value is None:
            return
        if method == "pin":
            self.sender.unpin(id)
        elif method == "create":
            number = next(self._requests)
            self._unwanted[number] = "abandon", id
            self._send(Kind.REQUEST, number, ("abandon", (id,)))

    def _send(self, kind: Kind, id: int, value: Any) -> None:
        self.sender.send(framing.frame(kind, id, pickle.dumps(value, 5)))

    # Reading.

    def pump(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Handles messages until `done()`; False when the time is up or the driver is gone."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not done():
            if self._ended:
                return False
            if self._reading.acquire(blocking=False):
                try:
                    self._reader_ident = threading.get_ident()
                    while not done() and not self._ended:
                        if not self._await_data(deadline_s):
                            return done()
                        self._read(0)
                        self._spin.over()
                finally:
                    self._reader_ident = 0
                    self._reading.release()
                    self._tell_waiters()
            else:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                with self._changed:
                    self._waiters += 1
                    if not done() and self._reading.locked():
                        self._changed.wait(left_s)
                    self._waiters -= 1
        return True

    def _await_data(self, deadline_s: float | None) -> bool:
        """Waits for something to read; False when the time is up."""
        self._spin.until(self._anything)
        if deadline_s is None and not self.running:
            return True  # the read itself blocks
        while True:
            if threading.get_ident() == self._main:
                self.check_cancelled(self.running)
            left_ms = None
            if deadline_s is not None:
                left_ms = max(0.0, (deadline_s - time.monotonic()) * 1000)
            events = self._poll.poll(left_ms)
            for fd, _ in events:
                if fd != self._wake:
                    return True
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            if not events and not left_ms:
                return False

    def _read(self, flags: int) -> None:
        try:
            messages = self._reader.read(self._sock, flags)
        except BlockingIOError:
            return
        except OSError:  # the driver is gone
            messages = None
        if messages is None:
            self.end()
            return
        for message in messages:
            self._handle(message)
        self._tell_waiters()

    def _tell_waiters(self) -> None:
        if self._waiters:
            with self._changed:
                self._changed.notify_all()

    def _handle(self, message: framing.Message) -> None:
        kind = message.kind
        if kind == Kind.RUN:
            self.calls.append(message)
        elif kind == Kind.VALUE:
            id, body, failed = pickle.loads(message.body)
            if (slot := self._slots.get(id)) is not None:
                slot.fill(body, failed=failed)
                self._notified.discard(slot)
        elif kind == Kind.READY:
            id, stored = pickle.loads(message.body)
            if (slot := self._slots.get(id)) is not None and slot.state != HERE:
                slot.stored = stored
                slot.arrived()
                self._notified.discard(slot)
        elif kind == Kind.REPLY:
            self._replies[message.id] = pickle.loads(message.body)
            self._drop_unwanted(message.id)
        elif kind == Kind.FUNCTION:
            id, _, body = pickle.loads(message.body)
            if body:
                self.functions[id] = body
            else:
                self.functions.pop(id, None)
        elif kind == Kind.BUILD:
            self.build = message

    def end(self) -> None:
        """Ends every wait, as the driver is gone."""
        self._ended = self.closing = True
        self.stop.set()
        self._tell_waiters()

    # The second socket.

    def _read_urgent(self) -> None:
        reader = framing.Reader()
        with contextlib.suppress(OSError):  # the driver is gone
            while (messages := reader.read(self._urgent)) is not None:
                for message in messages:
                    self._handle_urgent(message)

    def _handle_urgent(self, message: framing.Message) -> None:
        if message.kind == Kind.ASK_STOP:
            self.stop.set()
        elif message.kind == Kind.CLOSE:
            self.closing = True
            self.stop.set()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RD)  # wakes whoever reads
        elif message.kind == Kind.CANCEL:
            self.cancelled.add(message.id)
            self.cancel(message.id)
        elif message.kind == Kind.RECALL:
            self._return_calls()

    def _return_calls(self) -> None:
        """Returns calls that have not begun, also those still in the socket if nobody reads."""
        if self._reading.acquire(blocking=False):
            try:
                self._read(socket.MSG_DONTWAIT)
            finally:
                self._reading.release()
                self._tell_waiters()
        numbers = []
        with contextlib.suppress(IndexError):
            while True:
                message = self.calls.pop()
                numbers.append(message.id)
                self._unpin_inputs(message)
        self._send(Kind.RETURNED, 0, numbers)

    def _unpin_inputs(self, message: framing.Message) -> None:
        """Unpins the inputs of a call that will not run here."""
        task, _, _, _, arguments, inputs, *_ = pickle.loads(message.body)
        for id, place in {**dict(inputs), ids.arguments(task): arguments}.items():
            if not isinstance(place, bytes):
                self.sender.unpin(id)

    def check_cancelled(self, number: int) -> None:
        """Raises TaskCancelledError, once, in a call that was cancelled."""
        if number in self.cancelled:
            self.cancelled.discard(number)
            call_context.mark_cancelled()
            raise TaskCancelledError("the call was cancelled")

    def _interrupt_main(self, number: int) -> None:
        """Interrupts the main thread until its call has noticed the cancellation."""
        while self.running == number and number in self.cancelled:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)
            signal.pthread_kill(self._main, signal.SIGUSR1)
            time.sleep(0.005)  # it is sending, say

    def _interrupt(self, *_: Any) -> None:
        """Handles the signal of a cancellation; a wait for messages raises by itself."""
        is_reading = self._reading.locked() and self._reader_ident in (0, self._main)
        if not is_reading and not self.sender.is_sending:
            self.check_cancelled(self.running)


def place_value(
    runtime: Connection | Driver, id: bytes, packed: packing.Packed, what: str
) -> Place:
    """Returns the bytes of a small value, or the place in the store of a large one."""
    if packed.nbytes <= INLINE_BYTES:
        return packed.body
    location: int | str | None = runtime.request("create", id, packed.nbytes, what)
    if location is None:  # it is in the store already
        return 0, packed.nbytes
    try:
        packing.write(runtime.arena, location, packed, what)
    except BaseException:
        runtime.request("abandon", id)
        raise
    return 0 if isinstance(location, str) else location, packed.nbytes
