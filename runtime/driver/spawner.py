"""Starts, signals and buries processes, by way of the fork server."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.errors import ActorDiedError, ForkServerError, NotRunningError, tail_text
from gmi_drl.runtime.gcs.tables import EventRow
from gmi_drl.runtime.process import descendants
from gmi_drl.runtime.process.logs import log_tail
from gmi_drl.runtime.process.run_directory import working_directory
from gmi_drl.runtime.scheduler import events
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.channel import ClosedLater, SocketChannel
from gmi_drl.runtime.wire.protocol import THREAD_VARIABLES, Build, Exited, Kind, Ready, SpawnRequest

from .processes import Actor, Process

if TYPE_CHECKING:
    from .driver import Driver

_ORPHANS_S: Final = 2.0  # how long processes may take to follow their dead fork server


class Spawner:
    """Starts and ends the processes of a runtime, in the runtime's thread."""

    def __init__(self, driver: Driver, cores: Mapping[int, tuple[int, ...]]) -> None:
        self._driver, self._server = driver, driver.server
        self._loop, self._tell = driver.loop, driver.tell
        self._cores = cores  # by device; empty: processes are not pinned
        self.processes: dict[int, Process] = {}
        self.ready = Slot(b"", "the fork server's imports")
        self.broken = ""  # why no process can be started any more
        self.orphans: set[Process] = set()  # of a dead fork server, about to die
        self._control = SocketChannel(self._server.control)
        self._orphaned_s = 0.0
        self._forked = False  # whether the fork server has forked anything
        self._num_useless = 0  # how many fork servers in a row ended before they were of use
        self._numbers = itertools.count(1)
        self._loop.listen(self._control.sock.fileno(), self._on_control)

    def unavailable(self) -> ForkServerError | NotRunningError:
        """Returns an error that says why nothing is run any more."""
        if self._loop.running:
            return ForkServerError(self.broken)
        return NotRunningError(f"this was not answered: {self.broken}")

    def close(self) -> None:
        """Ends the fork server, which kills what still lives."""
        self._server.end(at_once=not self.ready.done)
        self.broken = "the runtime was shut down"
        for process in list(self.processes.values()):
            process.exited = process.exited or Exited(None, signal.SIGKILL, time.monotonic())
            self.gone(process)

    def give_up_orphans(self) -> None:
        """Gives up processes that have outlived their dead fork server for too long."""
        if time.monotonic() - self._orphaned_s > _ORPHANS_S:
            for process in list(self.orphans):
                self.gone(process)

    def forget(self) -> None:
        """Closes this copy's descriptors after a fork of the launcher."""
        self._control.forget()
        for process in self.processes.values():
            process.channel.forget()
            process.urgent.forget()

    def start_worker(self, start: events.StartWorker) -> None:
        """Starts one more worker, on a device."""
        if self.broken or not self._loop.running:  # nobody will need it
            return
        device = start.device
        request = SpawnRequest(
            title="worker", environment={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
            cores=self._cores.get(device, ()), num_threads=1, log="",
            directory=working_directory(), sys_path=tuple(sys.path),
        )  # fmt: skip
        try:
            process = self.spawn(request, False, device, None)
        except ForkServerError as error:
            failure = error
            self._loop.defer(lambda: self._not_started(device, failure))
            return
        process.send(Kind.BUILD, 0, Build(device, self._driver.namespace))
        # Deferred, as the scheduler is deciding right now.
        self._loop.defer(lambda: self._started(process, device))

    def _started(self, process: Process, device: int) -> None:
        self._tell(events.WorkerStarted(process.number, device))
        if process.dead:
            self._tell(events.WorkerLost(process.number))

    def _not_started(self, device: int, error: ForkServerError) -> None:
        """Fails a device's queued tasks unless it has another worker that does not wait for one."""
        self._tell(events.WorkerNotStarted(device))
        workers = [p for p in self.processes.values() if p.actor is None and p.device == device]
        if all(worker.blocked for worker in workers):
            self._driver.tasks.fail_queued(error, device)

    def stop_worker(self, stop: events.StopWorker) -> None:
        """Ends an idle worker."""
        process = self.processes[stop.worker]
        process.end_reason = "it was not needed any more"
        self._loop.send(process.urgent, framing.frame(Kind.CLOSE, 0))

    def spawn(
        self, request: SpawnRequest, keep_log: bool, device: int, actor: Actor | None
    ) -> Process:
        """Requests a new process, to which calls may be sent at once; or raises ForkServerError."""
        number = next(self._numbers)
        log = request.log or str(self._server.directory / f"{number}.log")
        sock, child_sock = _pair()
        try:
            urgent, child_urgent = _pair()
        except ForkServerError:
            sock.close()
            child_sock.close()
            raise
        child_socks = ClosedLater(child_sock, child_urgent)
        process = Process(number, device, log, keep_log, (sock, urgent), actor=actor)
        self.processes[number] = process
        self._loop.listen(sock.fileno(), lambda: self._on_process(process))
        if self.broken:
            self._loop.defer(lambda: self.gone(process))
            return process
        # What a task leaves running in a session of its own may serve others: it stays.
        variable = descendants.mark(self._server.directory, None if actor is None else number)
        request = dataclasses.replace(request, log=log, environment=request.environment | variable)
        frame = framing.frame(Kind.SPAWN, number, pickle.dumps(request, 5), 2)
        self._control.queue(frame, [child_sock.fileno(), child_urgent.fileno()], child_socks)
        self._loop.write(self._control)
        self._loop.touched.add(process.channel)
        return process

    def signal(self, process: Process, number: int) -> None:
        """Signals a process and all that it has started."""
        frame = framing.frame(Kind.SIGNAL, process.number, pickle.dumps(int(number), 5))
        self._loop.send(self._control, frame)

    def _on_control(self) -> None:
        if not self._control.open:
            return
        if self._control.full:
            self._loop.write(self._control)
        messages, open = self._control.read()
        for message in messages:
            if message.kind == Kind.SERVER_READY:
                ready: Ready = pickle.loads(message.body)
                if ready.num_threads != 1:
                    self.broken = (
                        f"the fork server has {ready.num_threads} threads since it imported "
                        f"{ready.threaded_by}, and cannot fork safely. Leave that module out of "
                        "preload"
                    )
                self.ready.fill(message.body)
            elif (process := self.processes.get(message.id)) is None:
                continue
            elif message.kind == Kind.FORKED:
                process.pid = pickle.loads(message.body)
                self._forked = True
            elif message.kind == Kind.NOT_FORKED:
                process.end_reason = f"it could not be forked: {pickle.loads(message.body)}"
                self.gone(process)
            elif message.kind == Kind.EXITED:
                process.exited = pickle.loads(message.body)
                while process.channel.open and all(self._read(process)):
                    pass  # read what it sent before its end
                self.gone(process)
        if not open:
            self._on_server_gone()

    def _on_server_gone(self) -> None:
        """Cleans up after a fork server: its children die by PDEATHSIG, their descendants here.

        Another one is started, unless two in a row have died before they were ready, or before they
        had forked anything that they were asked for.
        """
        server = self._server
        self._loop.ignore(self._control.sock.fileno())
        self._control.close()
        how = server.how_it_died()
        tail = log_tail(server.log)
        self._orphaned_s = time.monotonic()
        for process in self.processes.values():
            self.orphans.add(process)
            process.never_forked = process.pid is None
            by_signal = None if process.never_forked else signal.SIGKILL
            process.exited = Exited(None, by_signal, self._orphaned_s)
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        descendants.kill_all(server.directory)
        self._replace_server(f"the fork server {how}", tail)
        why = self.broken or "it went down with the fork server " + how.replace(")", "), which", 1)
        for process in list(self.orphans):
            process.end_reason = process.end_reason or why
            if process.silent or self.broken:
                self.gone(process)
        if self.broken:
            self._driver.tasks.fail_queued(self.unavailable())

    def _replace_server(self, how: str, tail: str) -> None:
        server = self._server
        log = tail_text(tail) if tail.strip() else ""
        fork_requested = any(process.never_forked for process in self.orphans)
        in_vain = not self._forked and (fork_requested or not self.ready.done)
        self._num_useless = self._num_useless + 1 if in_vain else 0
        milestone = "it had forked anything" if self.ready.done else "it was ready"
        self._forked = False
        if self.ready.done:
            self.ready = Slot(b"", "the fork server's imports")
        try:
            if self._num_useless > 1:
                raise ForkServerError(f"it is the second that ended before {milestone}")
            server.start()
        except (OSError, ForkServerError) as error:
            self.broken = (
                f"{how}, and is not started again: {error}. Call shutdown() and init() again{log}"
            )
            self.ready.fail(ActorDiedError("fork server", server.process.pid, reason=self.broken))
            return
        self._control = SocketChannel(server.control)
        self._loop.listen(self._control.sock.fileno(), self._on_control)
        self._driver.gcs.put(EventRow(time.time(), "fork server restarted", b"", how))
        print(f"gmi-drl: {how}; another one is started{log}", file=sys.stderr)

    def _on_process(self, process: Process) -> None:
        if not process.channel.open:  # buried by an event of the same round
            return
        if process.channel.full:
            self._loop.write(process.channel)
        _, open = self._read(process)
        if not open:
            self._loop.ignore(process.channel.sock.fileno())
            process.silent = True
            if process in self.orphans:  # nobody is left to report its exit
                self.gone(process)

    def _read(self, process: Process) -> tuple[bool, bool]:
        """Handles a process's messages; returns whether there were any, and its socket is open."""
        messages, open = process.channel.read()
        if self._loop.commands:  # calls sent directly are noted before their answers
            self._loop.obey()
        for message in messages:
            try:
                self._driver.requests.handle(process, message)
            except Exception:  # a bad message must not stop those behind it
                traceback.print_exc(file=sys.stderr)
        return bool(messages), open

    def gone(self, process: Process) -> None:
        """Removes a process that has ended, and releases what it held."""
        if process.dead:
            return
        if process.channel.open:
            self._loop.ignore(process.channel.sock.fileno())
        del self.processes[process.number]
        self.orphans.discard(process)
        process.dead = True
        process.channel.close()
        process.urgent.close()
        self._driver.requests.process_gone(
            process, process.exited or Exited(None, None, time.monotonic())
        )


def _pair() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise ForkServerError(
            f"no more processes can be started: {error.strerror}. Each takes two files of the "
            "process that called init(): raise its limit (ulimit -n), or start fewer."
        ) from error
