"""Runs the driver's one thread, which reads every socket and carries out other threads' commands.

Only this thread changes the tables. Others post commands to it and wait on slots, so that a
KeyboardInterrupt never hits half-way through a change.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime.api.refs import Gate
from gmi_drl.runtime.errors import ActorRuntimeError
from gmi_drl.runtime.process.spin import Spin
from gmi_drl.runtime.wire.channel import SocketChannel

if TYPE_CHECKING:
    from .driver import Driver

_COMMANDS_PER_ROUND: Final = 64  # commands, then what they led to is sent


class EventLoop:
    """Serves sockets by their handlers, and commands of other threads, in one thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.running = True
        self.asleep = False  # a command has to wake it
        self.commands: collections.deque[tuple[Callable[..., Any], tuple[Any, ...]]] = (
            collections.deque()
        )
        self.touched: set[SocketChannel] = set()  # to be written to at the end of this round
        self._deferred: collections.deque[Callable[[], None]] = collections.deque()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self.listen(self._wake_fd, self._clear_wake)
        self._thread = threading.Thread(target=self._serve, name="gmi_drl-runtime", daemon=True)

    # From any thread.

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Callable[..., Any], *args: Any) -> None:
        """Has the thread do something; returns at once."""
        self.commands.append((command, args))
        if self.asleep:
            self.wake()

    def ask(
        self, begin: Callable[[Callable[[Any], None]], None],
        check: Callable[[], None] | None = None, unwanted: Callable[[Any], None] | None = None,
    ) -> Any:  # fmt: skip
        """Has the thread call `begin`, and waits for the result that it passes on.

        While it waits `check` is called, which may raise. A result that comes after that, or after
        an interrupt, goes to `unwanted`.
        """
        results: list[Any] = []
        gate, is_waiting = Gate(1), True

        def then(result: Any) -> None:
            if is_waiting:
                results.append(result)
                gate.arrived()
            elif unwanted is not None and not isinstance(result, BaseException):
                unwanted(result)

        def start() -> None:
            try:
                begin(then)
            except Exception as error:
                then(error)

        def give_up() -> None:
            nonlocal is_waiting
            is_waiting = False
            for result in results:
                then(result)

        try:
            self.post(start)
            while not gate.wait(1.0):
                if not self.running:
                    raise ActorRuntimeError("the runtime was shut down")
                if check is not None:
                    check()
        except BaseException:
            self.post(give_up)
            raise
        if isinstance(results[0], BaseException):
            raise results.pop()
        return results[0]

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # closed: shutdown was faster
            os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Ends the thread once it has done the commands before this."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("shutdown() cannot be called from the runtime's own thread")
        self.post(setattr, self, "running", False)
        self._thread.join()
        self.forget()

    def forget(self) -> None:
        """Closes this process's descriptors, also after a fork."""
        self._epoll.close()
        os.close(self._wake_fd)

    # From its own thread.

    def obey(self) -> None:
        commands, num_done = self.commands, 0
        while commands:
            command, args = commands.popleft()
            try:
                command(*args)
            except Exception:
                traceback.print_exc(file=sys.stderr)
            num_done += 1
            if not num_done % _COMMANDS_PER_ROUND and self.touched:
                self._write_touched()

    def defer(self, action: Callable[[], None]) -> None:
        """Calls `action` at the end of this round."""
        self._deferred.append(action)

    def listen(self, fd: int, handler: Callable[[], None]) -> None:
        """Calls `handler` when the descriptor can be read, or written if something is queued."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def ignore(self, fd: int) -> None:
        """Takes back `listen`."""
        if self._handlers.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    def write(self, channel: SocketChannel) -> None:
        """Sends what the socket takes, and watches for room if some is left."""
        if not channel.open:
            return
        full = not channel.write()
        if full != channel.full:
            channel.full = full
            fd = channel.sock.fileno()
            if fd in self._handlers:  # else closed, or urgent, whose few bytes go with the next
                self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT * full)

    def send(self, channel: SocketChannel, frame: bytes) -> None:
        """Sends a frame now, behind those before it."""
        channel.queue(frame)
        self.write(channel)

    def _serve(self) -> None:
        poll, commands, deferred = self._epoll.poll, self.commands, self._deferred
        ready = select.poll()  # on the epoll itself, which is cheap
        ready.register(self._epoll.fileno(), select.POLLIN)
        spin = Spin()
        while self.running:
            spin.until(lambda: commands or deferred or ready.poll(0))
            self.asleep = True
            events = poll(0 if commands or deferred or self.touched else self._driver.timeout_s())
            self.asleep = False
            spin.over()
            try:
                self._round(events)
            except Exception:  # a bad message of one process must not stop the others
                traceback.print_exc(file=sys.stderr)

    def _round(self, events: list[tuple[int, int]]) -> None:
        handlers = self._handlers
        self.obey()
        for fd, _ in events:
            handler = handlers.get(fd)
            if handler is not None:  # else closed by an event of the same round
                try:
                    handler()
                except Exception:
                    traceback.print_exc(file=sys.stderr)
        while self._deferred:
            self._deferred.popleft()()
        self._driver.tick()
        if self.touched:
            self._write_touched()
        self._driver.after_round()

    def _write_touched(self) -> None:
        touched, self.touched = self.touched, set()
        for channel in touched:
            self.write(channel)

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
