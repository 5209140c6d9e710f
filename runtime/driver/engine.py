"""The driver's side: one thread that has the control state and talks to every process.

That thread owns all sockets and tables. Other threads hand it commands and wait on slots, so that
a KeyboardInterrupt never hits half-way through a change. The rules are elsewhere: `scheduler` and
`store` decide without doing, `tasks`, `actor_table` and `objects` keep the tables; here what
arrives is handed to them, and what they decide is done.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gmi_drl.runtime.api.refs import HERE, Gate, Slot
from gmi_drl.runtime.errors import (
    ActorDiedError,
    ActorRuntimeError,
    ForkServerError,
    NotRunningError,
)
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import EventRow
from gmi_drl.runtime.process.forkserver_process import ForkServerProcess
from gmi_drl.runtime.process.spawner import Spawner
from gmi_drl.runtime.process.spin import Spin
from gmi_drl.runtime.scheduler.scheduler import (
    Infeasible,
    Recall,
    Run,
    Scheduler,
    StartActor,
    StartWorker,
    StopWorker,
    Ticked,
)
from gmi_drl.runtime.store.arena import Arena
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Exited, Kind

from .actor_table import Actors
from .device_failures import Losses
from .function_table import Functions
from .gpus import Gpus
from .link import Channel, Process
from .objects import Objects
from .requests import Requests
from .tasks import Tasks
from .unretrieved_errors import Unasked

_TICK_S: Final = 0.005
_COOL_S: Final = 0.1
_RECORD_S: Final = 0.5  # how late the control store may know of what is not over
_TOGETHER: Final = 64  # commands, then what they led to is sent


class Engine:
    """The tables of a runtime, and the thread that keeps them."""

    def __init__(
        self,
        preload: Sequence[str],
        devices: Mapping[int, Mapping[str, float]],
        cores: Mapping[int, tuple[int, ...]],
        object_store_bytes: int,
        gcs: Path | None,
        gcs_replicas: int,
        namespace: str,
    ) -> None:
        self.owner_pid = os.getpid()
        self.arena = Arena.create(object_store_bytes)
        self.server = ForkServerProcess(preload, self.arena)
        self.ready = Slot(b"", "the fork server's imports")
        self.devices = devices
        self.namespace = namespace  # in which names are looked for when nothing is said
        try:
            self.gcs = Gcs(gcs or self.server.directory / "gcs.sqlite", replicas=gcs_replicas)
        except BaseException:
            self.server.end(at_once=True)
            self.server.remove()
            self.arena.close()
            raise
        self.objects = Objects(self, self.arena, self.server.directory)
        self.tasks = Tasks(self)
        self.actors = Actors(self)
        self.scheduler = Scheduler(devices)
        self.losses = Losses(self)
        self.gpus = Gpus(self, devices)
        self.unasked = Unasked(self)
        self.functions = Functions(self.gcs)
        self.processes: dict[int, Process] = {}
        self.touched: set[Process] = set()  # with something to write
        self.broken = ""  # why no process can be started any more
        self._commands: collections.deque[tuple[Callable[..., Any], tuple[Any, ...]]] = (
            collections.deque()
        )
        self.deferred: collections.deque[Callable[[], None]] = collections.deque()
        self._told_failure = ""
        self._recorded_s = self._ticked_s = self._cooled_s = 0.0
        self._asleep = False
        self._scheduled = False  # in this round
        self._ticks = False  # the scheduler wants to know how time goes by
        self.running = True
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self.listen(self._wake_fd, self._woken)
        self.spawner = Spawner(self, cores)
        self.requests = Requests(self)
        self._thread = threading.Thread(target=self._serve, name="gmi_drl-runtime", daemon=True)
        self._thread.start()

    def ask(self, begin: Callable[[Callable[[Any], None]], None]) -> Any:
        """Has the runtime's thread begin something, and waits for what it gives."""
        found: list[Any] = []
        gate = Gate(1)

        def then(result: Any) -> None:
            found.append(result)
            gate.arrived()

        def start() -> None:
            try:
                begin(then)
            except Exception as error:
                then(error)

        self.post(start)
        while not gate.wait(1.0):
            if not self.running:
                raise ActorRuntimeError("the runtime was shut down")
        if isinstance(found[0], BaseException):
            raise found.pop()
        return found[0]

    def post(self, command: Callable[..., Any], *args: Any) -> None:
        """Has the runtime's thread do something; returns at once."""
        self._commands.append((command, args))
        if self._asleep:
            self._wake()

    def lose_device(self, index: int) -> None:
        """Ends all that runs on a device, and makes again what was made there."""
        if index not in self.devices:
            raise ValueError(f"device {index}; there are {sorted(self.devices)}. Give one of them.")
        self.post(self.losses.device, index)

    def restart_scheduler(self) -> None:
        """Goes on with a new scheduler, which knows what the tables know."""

        def restart() -> None:
            self._do_deferred()
            self.losses.scheduler()

        self.post(restart)

    def close(self) -> None:
        """Ends the thread and the fork server, which kills what still lives."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("shutdown() cannot be called from the runtime's own thread")

        def stop() -> None:
            self.running = False

        self.post(stop)
        self._thread.join()
        self._epoll.close()
        self.server.end(at_once=not self.ready.done)
        os.close(self._wake_fd)
        self.broken = "the runtime was shut down"
        for process in list(self.processes.values()):
            process.exited = process.exited or Exited(None, signal.SIGKILL, time.monotonic())
            self.spawner.gone(process)
        for actor in list(self.actors.table.values()):
            if not actor.dead:
                actor.end_reason = self.broken
                self.actors.end_unstarted(actor)
        gone = self.gone()
        for task in list(self.tasks.live.values()):
            self.tasks.fail(task, gone)
        for slot in list(self.objects.slots.values()):
            if slot.state != HERE:
                slot.error_, slot.failed = gone, True
                slot.fail(gone)
        self.ready.fail(ActorDiedError("fork server", reason=self.broken))
        self.objects.close()
        self.gcs.close()
        self.server.remove()
        self.arena.close()

    def forget(self) -> None:
        """After a fork of the launcher: closes this copy's descriptors and touches nothing else."""
        self._epoll.close()
        self.server.forget()
        self.spawner.forget()
        os.close(self._wake_fd)
        self.arena.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # closed: shutdown was faster
            os.eventfd_write(self._wake_fd, 1)

    def _serve(self) -> None:
        poll, commands = self._epoll.poll, self._commands
        ready = select.poll()  # of the epoll itself: cheap to ask
        ready.register(self._epoll.fileno(), select.POLLIN)
        spin = Spin()
        while self.running:
            spin.until(lambda: commands or self.deferred or ready.poll(0))
            if self.spawner.waits_for_orphans:
                timeout = 0.05
            elif self._ticks:
                timeout = _TICK_S
            elif self.objects.cools:
                timeout = _COOL_S
            else:
                timeout = _RECORD_S if self.tasks.live or self.objects.room_requests else -1
            self._asleep = True
            if commands or self.deferred:
                timeout = 0
            events = poll(timeout)
            self._asleep = False
            spin.over()
            try:
                self._round(events)
            except Exception:  # one process's garbage must not silence the others
                traceback.print_exc(file=sys.stderr)

    def _round(self, events: list[tuple[int, int]]) -> None:
        handlers = self._handlers
        self.obey()
        for fd, _ in events:
            handler = handlers.get(fd)
            if handler is not None:  # else closed by an event of the same round
                self._try(handler, ())
        self._do_deferred()
        now_s = time.monotonic()
        if self._ticks and now_s - self._ticked_s >= _TICK_S:
            self._ticked_s = now_s
            self.schedule(Ticked(now_s))
        if self._scheduled or self._ticks:
            self._scheduled, self._ticks = False, self.scheduler.wants_tick
        if self.objects.room_requests:
            self.objects.refuse_late()
        if self.touched:
            self._write_touched()
        if now_s - self._cooled_s > _COOL_S:
            self._cooled_s = now_s
            if self.objects.cools:
                self.objects.give_back()
        if now_s - self._recorded_s > _RECORD_S:
            self._recorded_s = now_s
            self.tasks.record()
            self.tasks.handing.room()  # those that wait for it find out when that is too long
        failure = self.gcs.failure
        if failure != self._told_failure and (failure or not self.gcs.backlog):
            self._told_failure = failure  # once, though some rows may find room in between
            if failure:
                print(f"gmi-drl: {failure}", file=sys.stderr)
        if self.spawner.waits_for_orphans:
            self.spawner.bury_orphans()

    def obey(self) -> None:
        """Does what other threads asked for."""
        commands, done = self._commands, 0
        while commands:
            command, args = commands.popleft()
            try:
                command(*args)
            except Exception:
                traceback.print_exc(file=sys.stderr)
            done += 1
            if not done % _TOGETHER and self.touched:
                self._write_touched()

    def _try(self, action: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            action(*args)
        except Exception:
            traceback.print_exc(file=sys.stderr)

    def _write_touched(self) -> None:
        touched, self.touched = self.touched, set()
        for process in touched:
            self.write(process.channel)

    def listen(self, fd: int, handler: Callable[[], None]) -> None:
        """Calls `handler` when there is something to read, or room to write for what waits."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def ignore(self, fd: int) -> None:
        """No longer."""
        if self._handlers.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    def _do_deferred(self) -> None:
        while self.deferred:
            self.deferred.popleft()()

    def defer(self, action: Callable[[], None]) -> None:
        """Does something at the end of this round."""
        self.deferred.append(action)

    def event(self, kind: str, subject: bytes, text: str) -> None:
        """Something that people may want to know of later."""
        self.gcs.put(EventRow(time.time(), kind, subject, text))

    def schedule(self, event: Any) -> None:
        """Tells the scheduler, and does what it says."""
        self._scheduled = True
        one: Any
        for one in self.scheduler.handle(event, time.monotonic()):
            kind = type(one)
            if kind is Run:
                self.tasks.run(one.task, self.processes[one.worker])
            elif kind is StartWorker:
                self.spawner.start_worker(one.device)
            elif kind is Recall:
                process = self.processes[one.worker]
                process.urgent.queue(framing.frame(Kind.RECALL, 0))
                self.write(process.urgent)
            elif kind is StartActor:
                self.actors.start(one.actor, one.device)
            elif kind is StopWorker:
                self.spawner.stop_worker(one.worker)
            elif kind is Infeasible:
                if one.subject in self.actors.table:
                    self.actors.infeasible(one.subject, one.reason)
                else:
                    self.tasks.infeasible(one.subject, one.reason)

    def write(self, channel: Channel) -> None:
        """Sends what goes now, and sees to the rest."""
        if not channel.open:
            return
        full = not channel.write()
        if full != channel.full:
            channel.full = full
            fd = channel.sock.fileno()
            if fd in self._handlers:  # else few bytes, which go with the next ones; or it is over
                self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT * full)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    def gone(self) -> ForkServerError | NotRunningError:
        """Why nothing is run any more."""
        if self.running:
            return ForkServerError(self.broken)
        return NotRunningError(f"this was not answered: {self.broken}")
