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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.driver.link import Channel, Process
from gmi_drl.runtime.errors import ActorDiedError, ForkServerError, WorkerDiedError, tail_text
from gmi_drl.runtime.scheduler.scheduler import Unblocked, WorkerLost, WorkerStarted
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import THREAD_VARIABLES, Build, Exited, Kind, Ready, SpawnRequest

from . import descendants
from .logs import log_tail
from .run_directory import working_directory

if TYPE_CHECKING:
    from gmi_drl.runtime.driver.actor import Actor
    from gmi_drl.runtime.driver.engine import Engine

_ORPHANS_S: Final = 2.0  # how long processes may take to follow their dead fork server


class Spawner:
    """Starts and ends the processes of a runtime, in the runtime's thread."""

    def __init__(self, engine: Engine, cores: Mapping[int, tuple[int, ...]]) -> None:
        self._engine = engine
        self._cores = cores  # of each device; empty: not pinned
        self._control = Channel(engine.server.control)
        self._orphans: set[Process] = set()  # of a fork server that is dead: they follow it
        self._orphaned_s = 0.0
        self._forked = False  # the fork server has, something
        self._in_vain = 0  # fork servers in a row that ended before they did what they had to
        self._numbers = itertools.count(1)
        engine.listen(self._control.sock.fileno(), self._on_control)

    @property
    def waits_for_orphans(self) -> bool:
        """Returns whether a fork server is dead and its children may not be yet."""
        return bool(self._orphans)

    def bury_orphans(self) -> None:
        """Gives those up that have not followed their dead fork server in time."""
        if time.monotonic() - self._orphaned_s > _ORPHANS_S:
            for process in list(self._orphans):
                self.gone(process)

    def forget(self) -> None:
        """After a fork of the launcher: closes this copy's descriptors."""
        self._control.forget()
        for process in self._engine.processes.values():
            process.channel.forget()
            process.urgent.forget()

    def start_worker(self, device: int) -> None:
        """Starts one more worker on a device."""
        if self._engine.broken or not self._engine.running:  # nobody will need it
            return
        cores = self._cores.get(device, ())
        request = SpawnRequest(
            title="worker",
            environment={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
            cores=cores,
            num_threads=1,
            log="",
            directory=working_directory(),
            sys_path=tuple(sys.path),
        )
        try:
            process = self.spawn(request, False, device, None)
        except ForkServerError as error:
            failure = error
            self._engine.defer(lambda: self._not_started(device, failure))
            return
        process.send(Kind.BUILD, 0, Build(process.number, device, self._engine.namespace))
        # Not from within another decision: the scheduler is told when this one is carried out.
        self._engine.defer(lambda: self._started(process, device))

    def _started(self, process: Process, device: int) -> None:
        self._engine.schedule(WorkerStarted(process.number, device))
        if process.dead:
            self._engine.schedule(WorkerLost(process.number))

    def _not_started(self, device: int, error: ForkServerError) -> None:
        """Fails those who wait for a worker, unless there is another one."""
        engine = self._engine
        if not any(process.actor is None for process in engine.processes.values()):
            engine.tasks.fail_queued(error)
        number = next(self._numbers)  # the scheduler is answered: it started, and is gone
        engine.schedule(WorkerStarted(number, device))
        engine.schedule(WorkerLost(number))

    def stop_worker(self, number: int) -> None:
        """Lets a worker go that has nothing to do."""
        process = self._engine.processes[number]
        process.stopping, process.end_reason = True, "it was not needed any more"
        process.urgent.queue(framing.frame(Kind.CLOSE, 0))
        self._engine.write(process.urgent)

    def spawn(
        self, request: SpawnRequest, keep_log: bool, device: int, actor: Actor | None
    ) -> Process:
        """Asks for a new process, which may be sent to at once; ForkServerError if it cannot be."""
        number = next(self._numbers)
        log = request.log or str(self._engine.server.directory / f"{number}.log")
        flags = socket.SOCK_STREAM | socket.SOCK_CLOEXEC
        ours, theirs = _pair(flags)
        try:
            urgent, their_urgent = _pair(flags)
        except ForkServerError:
            ours.close()
            theirs.close()
            raise
        process = Process(number, device, log, keep_log, (ours, urgent), actor=actor)
        self._engine.processes[number] = process
        self._engine.listen(ours.fileno(), lambda: self._on_process(process))
        if self._engine.broken:
            self._engine.defer(lambda: self.gone(process))
            theirs.close()
            their_urgent.close()
            return process
        # What a task leaves running in a session of its own may serve others: it stays.
        mark = descendants.mark(self._engine.server.directory, None if actor is None else number)
        request = dataclasses.replace(request, log=log, environment=request.environment | mark)
        frame = framing.frame(Kind.SPAWN, number, pickle.dumps(request, 5), 2)
        keep = _Closing(theirs, their_urgent)
        self._control.queue(frame, [theirs.fileno(), their_urgent.fileno()], keep)
        self._engine.write(self._control)
        self._engine.touched.add(process)
        return process

    def kill_process(self, process: Process, reason: str) -> None:
        """Ends a process with SIGKILL."""
        process.end_reason = reason
        self.signal(process, signal.SIGKILL)

    def signal(self, process: Process, number: int) -> None:
        """Signals a process, with all it has started."""
        frame = framing.frame(Kind.SIGNAL, process.number, pickle.dumps(int(number), 5))
        self._control.queue(frame)
        self._engine.write(self._control)

    def _on_control(self) -> None:
        if not self._control.open:
            return
        if self._control.full:
            self._engine.write(self._control)
        messages, open = self._control.read()
        for message in messages:
            if message.kind == Kind.SERVER_READY:
                self._on_ready(pickle.loads(message.body), message)
            elif (process := self._engine.processes.get(message.id)) is None:
                continue
            elif message.kind == Kind.FORKED:
                process.pid = pickle.loads(message.body)
                self._forked = True
            elif message.kind == Kind.NOT_FORKED:
                process.end_reason = f"it could not be forked: {pickle.loads(message.body)}"
                self.gone(process)
            elif message.kind == Kind.EXITED:
                process.exited = pickle.loads(message.body)
                self._read_rest(process)
                self.gone(process)
        if not open:
            self._on_server_gone()

    def _on_ready(self, ready: Ready, message: framing.Message) -> None:
        if ready.num_threads != 1:
            self._engine.broken = (
                f"the fork server has {ready.num_threads} threads since it imported "
                f"{ready.threaded_by}, and cannot fork safely. Leave that module out of preload"
            )
        self._engine.ready.fill(message.body)

    def _on_server_gone(self) -> None:
        """Buries a fork server: its children die with it (PDEATHSIG), what they had started here.

        Another one is started, unless two have died, one after the other, before they were ready,
        or before they had forked anything of what they were asked for.
        """
        engine, server = self._engine, self._engine.server
        engine.ignore(self._control.sock.fileno())
        self._control.close()
        how = server.how_it_died()
        tail = server.log_tail()
        self._orphaned_s = time.monotonic()
        for process in engine.processes.values():
            self._orphans.add(process)
            process.never_forked = process.pid is None
            by_signal = None if process.never_forked else signal.SIGKILL
            process.exited = Exited(None, by_signal, self._orphaned_s)
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        descendants.kill_all(server.directory)
        self._replace_server(f"the fork server {how}", tail)
        why = engine.broken or f"it went down with the fork server {_which(how)}"
        for process in list(self._orphans):
            process.end_reason = process.end_reason or why
            if process.silent or engine.broken:
                self.gone(process)
        if engine.broken:
            engine.tasks.fail_queued(engine.gone())

    def _replace_server(self, how: str, tail: str) -> None:
        engine, server = self._engine, self._engine.server
        said = tail_text(tail) if tail.strip() else ""
        asked = any(process.never_forked for process in self._orphans)
        in_vain = not self._forked and (asked or not engine.ready.done)
        self._in_vain = self._in_vain + 1 if in_vain else 0
        before = "it had forked anything" if engine.ready.done else "it was ready"
        self._forked = False
        if engine.ready.done:
            engine.ready = Slot(b"", "the fork server's imports")
        try:
            if self._in_vain > 1:
                raise ForkServerError(f"it is the second that ended before {before}")
            server.start()
        except (OSError, ForkServerError) as error:
            engine.broken = (
                f"{how}, and is not started again: {error}. Call shutdown() and init() again{said}"
            )
            engine.ready.fail(
                ActorDiedError("fork server", server.process.pid, reason=engine.broken)
            )
            return
        self._control = Channel(server.control)
        engine.listen(self._control.sock.fileno(), self._on_control)
        engine.event("fork server restarted", b"", how)
        print(f"gmi-drl: {how}; another one is started{said}", file=sys.stderr)

    def _on_process(self, process: Process) -> None:
        if not process.channel.open:  # buried by an event of the same round
            return
        if process.channel.full:
            self._engine.write(process.channel)
        messages, open = process.channel.read()
        self._engine.obey()  # calls that went straight are noted before their answers are looked at
        for message in messages:
            self._engine.requests.take(process, message)
        if not open:
            self._engine.ignore(process.channel.sock.fileno())
            process.silent = True
            if process in self._orphans:  # nobody is left who would tell how it ended
                self.gone(process)

    def _read_rest(self, process: Process) -> None:
        """Reads what a dead process had sent before its end."""
        open = process.channel.open
        while open:
            messages, open = process.channel.read()
            self._engine.obey()
            for message in messages:
                self._engine.requests.take(process, message)
            if not messages:
                break

    def gone(self, process: Process) -> None:
        """Sees to what a process held, wrote and ran when it is over."""
        if process.dead:
            return
        if process.channel.open:
            self._engine.ignore(process.channel.sock.fileno())
        del self._engine.processes[process.number]
        self._orphans.discard(process)
        process.bury()
        exited = process.exited or Exited(None, None, time.monotonic())
        for id, count in process.pins.items():
            for _ in range(count):
                self._engine.objects.unpin(id)
        for id in process.creating:
            self._engine.objects.abandon(id)
        if process.blocked:
            process.blocked = False
            self._engine.schedule(Unblocked(process.scheduled_as))
        if process.actor is not None:
            self._engine.actors.process_gone(process, exited)
        else:
            self._engine.schedule(WorkerLost(process.number))
            self._engine.tasks.process_gone(
                process,
                WorkerDiedError(
                    "a task", process.pid or 0, 1, exited.exit_code, exited.signal,
                    log_tail=log_tail(process.log), reason=process.end_reason,
                ),
            )  # fmt: skip
            process.remove_log()
        self._engine.objects.holder_gone(("process", process.number))
        self._engine.losses.process_gone(process)


def _pair(flags: int) -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair(socket.AF_UNIX, flags)
    except OSError as error:
        raise ForkServerError(
            f"no more processes can be started: {error.strerror}. Each takes two files of the "
            "process that called init(): raise its limit (ulimit -n), or start fewer."
        ) from error


def _which(how: str) -> str:
    """Turns `(pid 12) was killed by SIGKILL` into `(pid 12), which was killed by SIGKILL`."""
    return how.replace(") ", "), which ", 1)


class _Closing:
    """Closes sockets when it is dropped, that is when their copies have been sent."""

    def __init__(self, *socks: socket.socket) -> None:
        self._socks = socks

    def __del__(self) -> None:
        for sock in self._socks:
            sock.close()
