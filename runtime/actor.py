"""An actor from the inside: takes calls in order, answers them, and sends records upward.

The main thread runs the calls. One thread receives (so that a stop is noticed during a call), one
sends records (so that `emit` never waits for the launcher).
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from . import packing, wire
from .protocol import Failure, Kind

RECORD_CAPACITY: Final = 16384
_FLUSH_S: Final = 2.0

_here: _Actor | None = None


def emit(record: Any) -> bool:
    """Sends `record` to the launcher, which finds it in `records()`; never waits.

    It is pickled before this returns, so it may be changed afterwards. When the launcher does not
    keep up, the oldest records are dropped and counted. False outside an actor: nobody is told.
    """
    if _here is None:
        return False
    _here.outbox.post(packing.pack_plain(record, "the record"))
    return True


def stop_requested() -> bool:
    """True once the launcher has asked this actor to come to an end; False outside an actor."""
    return _here is not None and _here.stop.is_set()


def run(sock: socket.socket, name: str, prepare: Callable[[], None]) -> int:
    """Serves the actor's socket until it is told to end; returns the exit code of the process.

    `prepare` settles the process; it runs before anything of the user's is unpickled.
    """
    global _here
    _here = _Actor(sock, name)
    try:
        code = _here.serve(prepare)
    except SystemExit as leaving:
        code = _exit_code(leaving)
    _here.outbox.close()
    threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any Python process
    atexit._run_exitfuncs()
    return code


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


class _Actor:
    def __init__(self, sock: socket.socket, name: str) -> None:
        self.stop = threading.Event()
        self.outbox = _Outbox(sock)
        self._sock = sock
        self._name = name
        self._closing = False
        self._inbox: queue.SimpleQueue[wire.Message | None] = queue.SimpleQueue()

    def serve(self, prepare: Callable[[], None]) -> int:
        threading.Thread(target=self._receive, name="gmi_drl-receive", daemon=True).start()
        try:
            instance = self._build(prepare)
        except SystemExit:
            raise
        except BaseException as error:
            self._fail(0, error)
            return 1
        if instance is None:
            return 0
        self.outbox.reply(wire.frame(Kind.RESULT, 0))
        while (call := self._inbox.get()) is not None and not self._closing:
            self._answer(instance, call)
            del call  # its arguments may be large
        return 0

    def _build(self, prepare: Callable[[], None]) -> Any:
        """The instance; None when the launcher went away before it was asked for."""
        prepare()
        build, first_call = self._inbox.get(), self._inbox.get()
        if build is None or first_call is None:
            return None
        setup, body = build.load()
        if setup:
            packing.unpack(setup, f"the setup of actor {self._name}")()
        cls = packing.unpack(body, f"the class of actor {self._name}")
        args, kwargs = first_call.load(f"an argument of {self._name}.__init__")
        return cls(*args, **kwargs)

    def _answer(self, instance: Any, message: wire.Message) -> None:
        try:
            method, args, kwargs = message.load(f"an argument of a call of {self._name}")
            value = getattr(instance, method)(*args, **kwargs)
            del args, kwargs
            if value is None:
                parts, fds = wire.frame(Kind.RESULT, message.id), []
            else:
                packed = packing.pack(value, f"the result of {self._name}.{method}")
                parts = wire.frame(Kind.RESULT, message.id, packed)
                fds = [memfd.fd for memfd in packed.memfds]
        except SystemExit:
            raise
        except BaseException as error:
            self._fail(message.id, error)
        else:
            self.outbox.reply(parts, fds)

    def _fail(self, id: int, error: BaseException) -> None:
        raised_s = time.monotonic()
        text = "".join(traceback.format_exception(_without_our_frames(error)))
        with contextlib.suppress(OSError):  # the log's disk may be full; the caller still learns it
            print(text, file=sys.stderr, end="", flush=True)
        error.__traceback__ = None
        failure = packing.pack(Failure(packing.pack_exception(error), text, raised_s))
        self.outbox.reply(wire.frame(Kind.ERROR, id, failure))

    def _receive(self) -> None:
        reader = wire.Reader()
        while True:
            try:
                messages = reader.read(self._sock)
            except OSError:  # the launcher is gone
                messages = None
            if messages is None:
                break
            for message in messages:
                if message.kind == Kind.ASK_STOP:
                    self.stop.set()
                elif message.kind == Kind.CLOSE:
                    self._end()
                else:
                    self._inbox.put(message)
        self._end()

    def _end(self) -> None:
        self._closing = True
        self.stop.set()
        self._inbox.put(None)


def _without_our_frames(error: BaseException) -> BaseException:
    """The error with the traceback beginning at the user's code, if any of it is there."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace) if trace is not None else error


class _Outbox:
    """What this process sends: results at once, records when it can, in the order they came."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._records: collections.deque[bytes] = collections.deque()
        self._dropped = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def post(self, record: bytes) -> None:
        """Queues a record; never blocks on the socket."""
        with self._changed:
            if len(self._records) >= RECORD_CAPACITY:
                self._records.popleft()
                self._dropped += 1
            self._records.append(record)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._send_records, name="gmi_drl-records", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def reply(self, parts: list[Any], fds: list[int] | None = None) -> None:
        """Sends what was emitted before, then this frame; waits until the socket has taken it."""
        with self._sending:
            self._flush()
            self._send(parts, fds or [])

    def close(self) -> None:
        """Sends what is queued, for at most two seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_FLUSH_S)

    def _send_records(self) -> None:
        while True:
            with self._changed:
                while not self._records and not self._closed:
                    self._changed.wait()
                if not self._records:
                    return
            with self._sending:
                self._flush()

    def _flush(self) -> None:
        while True:
            with self._changed:
                batch = [self._records.popleft() for _ in range(min(len(self._records), 64))]
                dropped = self._dropped
            if not batch:
                return
            parts: list[Any] = []
            for record in batch:
                parts += wire.frame(Kind.RECORD, dropped, packing.Packed(record))
            self._send(parts, [])

    def _send(self, parts: list[Any], fds: list[int]) -> None:
        try:
            wire.send(self._sock, parts, fds)
        except OSError:  # the launcher is gone; the fork server is about to end this process
            self._records.clear()
