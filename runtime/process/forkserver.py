"""Forks workers and actors, in a process that imports what they need once and has one thread.

    python -m gmi_drl.runtime.process.forkserver <ServerConfig as JSON>

It reports each exit of a child at once, passes signals on to process groups, and bounds logs. When
the driver ends, however it ends, the control socket closes: then the server kills everything it has
forked, removes the run directory, and exits. When the server is killed, the kernel kills the groups
of its children.

Fork is safe here because there is nothing but this one thread: it is started with one thread for
OpenMP and BLAS, so no import has a pool to start, and it never computes (GNU OpenMP cannot be used
after a fork of a process that has opened a parallel region). CUDA is not touched either: a driver
API that was initialised before a fork does not work in the child.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib
import json
import os
import pathlib
import pickle
import select
import signal
import socket
import sys
import time
from typing import Any

from gmi_drl.runtime.store.arena import Arena
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Exited, Kind, Ready, ServerConfig, SpawnRequest

from . import child_setup, descendants, logs, run_directory, worker
from .connection import Connection

_LAST_CHILDREN_S = 5.0  # how long children may take to die of SIGKILL at the end


class _Server:
    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._control = socket.socket(fileno=config.control_fd)
        self._reader = framing.Reader()
        self._waiting: collections.deque[framing.Message] = collections.deque()
        self._actors: dict[int, int] = {}  # pid: the actor's number
        self._logs: dict[int, str] = {}  # pid: its log
        self._looked_s = 0.0  # when the sizes of logs were checked last
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lifeline_read, self._lifeline_write = os.pipe2(os.O_CLOEXEC)
        self._driver_fd = _pidfd(config.driver_pid)
        self._poll = select.poll()
        for fd in (config.control_fd, self._wake_read, self._driver_fd):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)

    def run(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Even if somebody has stopped this process, it must see the driver's end.
        child_setup.signal_when_gone(self._config.lifeline_fd, signal.SIGCONT, os.getpid())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        with contextlib.suppress(OSError):  # orphaned grandchildren become children of this process
            child_setup.prctl(child_setup.PR_SET_CHILD_SUBREAPER, 1)
        try:
            ready = self._preload()
            if ready is not None:
                self._tell(Kind.SERVER_READY, 0, ready)
                while self._serve_round():
                    pass
        except (BrokenPipeError, ConnectionResetError):
            pass  # the driver is gone
        except BaseException:
            self._kill_all()  # the driver shows the traceback, and removes the directory
            raise
        self._kill_all()
        run_directory.remove(pathlib.Path(self._config.directory))

    def _preload(self) -> Ready | None:
        start_s = time.monotonic()
        loaded: list[str] = []
        skipped: dict[str, str] = {}
        threaded_by = ""
        for name in ("cloudpickle", *self._config.preload):  # the runtime needs the first
            if os.getppid() != self._config.driver_pid:  # it is gone
                return None
            try:
                importlib.import_module(name)
            except Exception as error:  # an actor that needs it will fail
                skipped[name] = f"{type(error).__name__}: {error}"
            else:
                loaded.append(name)
            if not threaded_by and _num_threads() > 1:
                threaded_by = name
        # The collector ignores frozen objects from now on, so that children keep sharing the pages.
        gc.collect()
        gc.freeze()
        import_s = time.monotonic() - start_s
        return Ready(
            pid=os.getpid(), loaded=tuple(loaded), skipped=skipped, num_threads=_num_threads(),
            threaded_by=threaded_by, import_s=import_s,
        )  # fmt: skip

    def _serve_round(self) -> bool:
        """Handles one round of messages, exits and logs; False when the driver is gone."""
        for fd, _ in self._poll.poll(logs.LOOK_S * 1000 if self._logs else None):
            if fd == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wake_read, 4096):
                        pass
            elif fd == self._driver_fd:
                return False
            else:
                try:
                    messages = self._reader.read(self._control)
                except ConnectionResetError:
                    return False
                if messages is None:
                    return False
                self._waiting.extend(messages)
        while self._waiting:
            self._handle(self._waiting.popleft())
        self._collect()
        now_s = time.monotonic()
        if self._logs and now_s - self._looked_s > logs.LOOK_S:
            self._looked_s = now_s
            for path in set(self._logs.values()):
                private = os.path.dirname(path) == self._config.directory
                logs.rotate(path, logs.PRIVATE_LOG_BYTES if private else logs.LOG_BYTES)
        return True

    def _handle(self, message: framing.Message) -> None:
        if message.kind == Kind.SPAWN:
            self._spawn(message.id, pickle.loads(message.body), message.take_fds())
        elif message.kind == Kind.SIGNAL:
            for pid, number in self._actors.items():
                if number == message.id:
                    _signal_group(pid, pickle.loads(message.body))

    def _spawn(self, number: int, request: SpawnRequest, fds: list[int]) -> None:
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            for fd in fds:
                os.close(fd)
            self._tell(Kind.NOT_FORKED, number, str(error))
            return
        if pid:
            for fd in fds:
                os.close(fd)
            self._actors[pid] = number
            self._logs[pid] = request.log
            self._tell(Kind.FORKED, number, pid)
            return
        code = 1
        try:
            child_setup.isolate(parent, (self._config.lifeline_fd, self._lifeline_read))
            self._forget()
            sock, urgent = (socket.socket(fileno=fd) for fd in fds)
            arena = Arena(self._config.arena_fd, self._config.arena_bytes)
            connection = Connection(sock, urgent, arena)
            code = worker.run(connection, lambda: child_setup.configure(request))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _forget(self) -> None:
        """Closes the server's descriptors in the child, and the sockets of other actors."""
        self._control.close()
        for message in self._waiting:
            message.close()
        self._reader.close()
        config = self._config
        own_fds = [self._wake_read, self._wake_write, self._driver_fd]
        own_fds += [self._lifeline_read, self._lifeline_write]
        for fd in (*own_fds, config.lock_fd, config.lifeline_fd):
            if fd >= 0:
                os.close(fd)

    def _collect(self) -> None:
        """Reaps every child that has ended, and kills what is left of its process group."""
        reaped = False
        while True:
            try:
                status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if status is None:
                if reaped:
                    self._kill_left()
                return
            died_s, reaped = time.monotonic(), True
            number = self._actors.pop(status.si_pid, None)
            self._logs.pop(status.si_pid, None)
            if number is not None:  # before it is reaped: until then the pid cannot be another's
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(status.si_pid, signal.SIGKILL)
            os.waitpid(status.si_pid, 0)
            if number is not None:
                exited = status.si_code == os.CLD_EXITED
                code = status.si_status if exited else None
                by_signal = None if exited else status.si_status
                self._tell(Kind.EXITED, number, Exited(code, by_signal, died_s))

    def _kill_left(self) -> None:
        """Kills orphans that actors which have ended left in sessions of their own.

        What these have started becomes a child of this process when they have ended.
        """
        for pid in _children():
            if pid not in self._actors:
                directory, number = descendants.marked(pid)
                is_ours = directory == self._config.directory and number is not None
                if is_ours and number not in self._actors.values():
                    _signal_group(pid, signal.SIGKILL)

    def _tell(self, kind: Kind, number: int, value: Any) -> None:
        framing.send(self._control, framing.frame(kind, number, pickle.dumps(value, 5)))

    def _kill_all(self) -> None:
        """Kills the actors' groups, then orphans that they left; waits until all are gone."""
        deadline_s = time.monotonic() + _LAST_CHILDREN_S
        while time.monotonic() < deadline_s:
            for pid in self._actors:
                _signal_group(pid, signal.SIGKILL)
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while pid := os.waitpid(-1, os.WNOHANG)[0]:
                    self._actors.pop(pid, None)
            except ChildProcessError:
                break  # none is left
            select.select([self._wake_read], [], [], 0.02)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it was just forked, and has no group yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:  # on an old kernel, or in a sandbox, the closing socket tells
        return -1


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _children() -> list[int]:
    """Returns the pids of all children, with orphans that dead ones left."""
    own_pid = os.getpid()
    try:
        with open(f"/proc/self/task/{own_pid}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel that does not list them
        import psutil

        return [child.pid for child in psutil.Process().children()]


def main(argument: str) -> None:
    fields: dict[str, Any] = json.loads(argument)
    config = ServerConfig(**fields)
    sys.path[:] = config.sys_path
    child_setup.set_title("fork server")
    _Server(config).run()


if __name__ == "__main__":
    main(sys.argv[1])
