"""Starts and ends the fork server process, with its run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from gmi_drl.runtime.errors import exit_text
from gmi_drl.runtime.store.arena import Arena
from gmi_drl.runtime.wire.protocol import THREAD_VARIABLES, ServerConfig

from . import child_setup, descendants, run_directory

# With one thread each, no import starts a pool of threads, which a fork would leave dead.
# Threads that wait must sleep, as a GMI's simulator threads want the same cores, but not at once:
# small operations follow each other within microseconds, and waking a thread takes as long as ten
# of them. So many turns of libgomp's loop are tens of microseconds.
ONE_THREAD: Final = {
    **dict.fromkeys(THREAD_VARIABLES, "1"),
    "OMP_PROC_BIND": "false",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "10000",
}
_END_S: Final = 8.0
_EXIT_S: Final = 1.0  # how long it may take to exit after its socket has closed


class ForkServerProcess:
    """Runs a fork server, and its replacements; `control` is the socket to it."""

    def __init__(self, preload: Sequence[str], arena: Arena) -> None:
        run_directory.sweep()
        self.directory, self._lock_fd = run_directory.create()
        self.log = self.directory / "forkserver.log"
        self._lifeline = os.pipe2(os.O_CLOEXEC)  # its writing end closes when this process ends
        self._arena = arena
        self._preload, self._sys_path = list(preload), list(sys.path)
        self._environment = {
            **os.environ,
            **ONE_THREAD,
            **descendants.mark(self.directory),
            "PYTHONPATH": child_setup.python_path(),  # the actors get the real variable
        }
        try:
            self.start()
        except OSError:
            self.remove()
            raise

    def start(self) -> None:
        """Starts the process, or a replacement of one that has died."""
        self.control, server_sock = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC
        )
        config = ServerConfig(
            control_fd=server_sock.fileno(), lock_fd=self._lock_fd, lifeline_fd=self._lifeline[0],
            arena_fd=self._arena.fd, arena_bytes=self._arena.nbytes, driver_pid=os.getpid(),
            directory=str(self.directory), preload=self._preload, sys_path=self._sys_path,
        )  # fmt: skip
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        server = f"{__package__}.forkserver", json.dumps(dataclasses.asdict(config))
        passed_fds = config.control_fd, config.lock_fd, config.lifeline_fd, config.arena_fd
        try:
            with open(self.log, "wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, *flags, "-P", "-m", *server], env=self._environment,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=passed_fds,
                    start_new_session=True,
                )  # fmt: skip
        except OSError:
            self.control.close()
            raise
        finally:
            server_sock.close()

    def how_it_died(self) -> str:
        """Tells how it ended after closing its socket: `(pid 12) was killed by SIGKILL`."""
        try:
            code = self.process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:  # it hangs
            self.process.kill()
            code = self.process.wait()
        text = exit_text(None, -code) if code < 0 else exit_text(code, None)
        return f"(pid {self.process.pid}) {text}"

    def end(self, at_once: bool) -> None:
        """Ends it and all that it has forked; `at_once` if it has not forked anything."""
        self.control.close()
        if at_once:
            self.process.kill()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode and not at_once:  # it has not cleaned up by itself
            descendants.kill_all(self.directory)

    def remove(self) -> None:
        """Removes the run directory, once all that the fork server has forked is gone."""
        run_directory.remove(self.directory)
        with contextlib.suppress(OSError):
            os.close(self._lock_fd)
        self.forget()

    def forget(self) -> None:
        """Closes this copy's descriptors after a fork of the launcher."""
        for fd in self._lifeline:
            with contextlib.suppress(OSError):
                os.close(fd)
