"""Runs a private MPS control daemon through NVIDIA's program nvidia-cuda-mps-control.

With -d it starts the daemon that CUDA_MPS_PIPE_DIRECTORY names, else it sends that daemon commands.
Its exit code says only whether a daemon answered; the result of a command is in its output.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Final

import psutil

from gmi_drl.gmi.errors import GmiError

CONTROL: Final = "nvidia-cuda-mps-control"
SERVER: Final = "nvidia-cuda-mps-server"
IN_CONTAINERS: Final = "/usr/local/nvidia/bin"  # the driver's programs, often not on PATH
_START: Final = timedelta(seconds=15)
_ANSWER: Final = timedelta(seconds=5)
_QUIT_S: Final = 3  # servers get this long before the daemon ends them
_GONE: Final = timedelta(seconds=_QUIT_S + 2)  # by then all of its processes have ended
_TERMINATED: Final = timedelta(seconds=2)
_KILLED: Final = timedelta(seconds=5)
_POLL_S: Final = 0.02  # between two checks of processes
_LOG_LINES: Final = 10
_PROGRAM: Final = "nvidia-cuda-mps-"  # clients have the directory in their environment too
_CALLER_VARIABLES: Final = ("CUDA_MPS_", "CUDA_VISIBLE_DEVICES")  # that the daemon must not inherit


class MpsError(GmiError):
    """An MPS daemon could not be started, asked or stopped: its output, rule, remedy."""


def program(name: str) -> str | None:
    """Finds one of NVIDIA's programs on PATH, or in the driver's folder of containers."""
    return shutil.which(name, path=_path())


def missing_programs() -> list[str]:
    """Lists those of NVIDIA's two programs for MPS that are not there."""
    return [name for name in (CONTROL, SERVER) if program(name) is None]


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), IN_CONTAINERS))


class Daemon:
    """Controls the daemon of one GPU whose pipe is in `directory`/p<index>, whoever started it.

    `directory` must be private (0700), and short: sockets are made below it.
    """

    def __init__(self, directory: Path, device_uuid: str, index: int = 0) -> None:
        self.device_uuid = device_uuid
        self.pipe, self.logs = directory / f"p{index}", directory / f"l{index}"

    def environment(self) -> dict[str, str]:
        """Returns what a process needs to be its client."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "CUDA_VISIBLE_DEVICES": self.device_uuid,
        }

    def start(self, *, static: bool = False) -> None:
        """Starts it and returns when it answers, within 20 s; `static`: with static partitions."""
        control = program(CONTROL)
        if control is None:
            raise MpsError(
                f"MPS for GPU {self.device_uuid}: {CONTROL} is not on PATH, nor in "
                f"{IN_CONTAINERS}. Install the driver's compute utilities (nvidia-compute-utils), "
                "or use backend direct or green."
            )
        self.pipe.mkdir(mode=0o700, exist_ok=True)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        try:
            self._launch(control, ["-d", *(["-S"] if static else [])])
            self._await_answer()
        except MpsError:
            with contextlib.suppress(MpsError):
                self.stop()
            raise

    def _launch(self, control: str, options: list[str]) -> None:
        command = " ".join([CONTROL, *options])
        with (self.logs / "start.log").open("wb") as file:  # the daemon may keep a pipe open
            try:
                process = subprocess.run(
                    [control, *options], env=self._control_environment(), stdin=subprocess.DEVNULL,
                    stdout=file, stderr=subprocess.STDOUT, timeout=_START.total_seconds(),
                    check=False, start_new_session=True,  # Ctrl-C must not reach it
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                fault = f"{command} has not come back after {_START.total_seconds():g} s"
                raise self._error(fault) from None
        if process.returncode:
            raise self._error(f"{command} ended with {process.returncode}")

    def _await_answer(self) -> None:
        deadline_s = time.monotonic() + _ANSWER.total_seconds()
        while True:
            try:
                self.active_thread_percentage()
                return
            except MpsError:
                if time.monotonic() > deadline_s or not processes_of_pipe(self.pipe):
                    raise
            time.sleep(_POLL_S)

    def ask(self, command: str, timeout: timedelta | None = None) -> str:
        """Returns the daemon's output on a command; MpsError if it does not answer by the deadline.

        The deadline is in 5 s unless `timeout` is given. The output is stripped.
        """
        timeout = timeout or _ANSWER
        try:
            process = subprocess.run(
                [program(CONTROL) or CONTROL], env=self._control_environment(),
                input=command + "\n", capture_output=True, text=True,
                timeout=timeout.total_seconds(), check=False,
            )  # fmt: skip
        except OSError as error:
            raise self._error(f"{CONTROL} cannot be run: {error}") from None
        except subprocess.TimeoutExpired:
            fault = f"{command!r} has no answer after {timeout.total_seconds():g} s"
            raise self._error(fault) from None
        if process.returncode:
            raise self._error(f"{command!r}: {(process.stdout + process.stderr).strip()}")
        return process.stdout.strip()

    def active_thread_percentage(self) -> float:
        """Returns the largest share of the GPU that clients get; MpsError if it is not well."""
        answer = self.ask("get_default_active_thread_percentage")
        try:
            return float(answer)
        except ValueError:
            raise self._error(f"it says {answer!r} when it is asked for a percentage") from None

    def servers(self, timeout: timedelta | None = None) -> list[int]:
        """Lists the pids of its servers: none before the first client."""
        return _numbers(self.ask("get_server_list", timeout))

    def clients(self, server: int, timeout: timedelta | None = None) -> list[int]:
        """Lists the pids of a server's clients."""
        return _numbers(self.ask(f"get_client_list {server}", timeout))

    def terminate(self, pids: Collection[int], timeout: timedelta) -> list[int]:
        """Has servers terminate clients within `timeout`; returns the clients it has asked for.

        All are asked at once, as a hanging client takes long. One with a fatal fault, which has no
        work in flight, is left out. MpsError if the daemon does not answer.
        """
        deadline_s = time.monotonic() + timeout.total_seconds()

        def left() -> timedelta:
            return timedelta(seconds=max(0.001, deadline_s - time.monotonic()))

        commands: dict[int, str] = {}
        for server in self.servers(left()):
            clients = [pid for pid in self.clients(server, left()) if pid in pids]
            if clients and "FAULT" not in self.ask(f"get_server_status {server}", left()).upper():
                commands |= {pid: f"terminate_client {server} {pid}" for pid in clients}
        with ThreadPoolExecutor(max(1, len(commands)), "gmi-drl-terminate") as pool:
            for future in [pool.submit(self.ask, text, left()) for text in commands.values()]:
                future.result()
        return list(commands)

    def add_partition(self, chunks: int) -> str:
        """Returns the id of a new static partition of so many chunks, for CUDA_MPS_SM_PARTITION."""
        answer = self.ask(f"sm_partition add {self.device_uuid} {chunks}")
        for word in answer.split():
            if word.startswith("GPU-") and "/" in word:
                return word
        raise self._error(f"no partition of {chunks} chunks: it says {answer!r}")

    def stop(self) -> bool:
        """Ends the daemon and its servers within 20 s; returns whether any ran.

        MpsError if even SIGKILL does not help. A daemon in another container can only be asked.
        """
        alive = processes_of_pipe(self.pipe)
        if not alive and not (self.pipe / "control").exists():
            return False
        with contextlib.suppress(MpsError):
            self.ask(f"quit -t {_QUIT_S}", _GONE)
            alive = wait_gone(self.pipe, _GONE)
        for number, grace in ((signal.SIGTERM, _TERMINATED), (signal.SIGKILL, _KILLED)):
            if alive:
                signal_all(self.pipe, number)
                alive = wait_gone(self.pipe, grace)
        if alive:
            pids = ", ".join(str(process.pid) for process in alive)
            raise self._error(
                f"processes {pids} outlive SIGKILL. They hang in the driver: look for Xid lines in "
                "dmesg; the GPU may need a reset"
            )
        return True

    def _error(self, what: str) -> MpsError:
        tail = log_tail(self.logs)
        log = f"\n{tail}" if tail else " Its log is empty."
        return MpsError(f"MPS daemon of GPU {self.device_uuid}: {what}.{log}")

    def _control_environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(_CALLER_VARIABLES)}
        return {**inherited, **self.environment(), "PATH": _path()}  # on which it finds its server


def log_tail(logs: Path) -> str:
    """Returns the last lines that a daemon and its servers have written in their log folder."""
    lines = []
    for name in ("start.log", "control.log", "server.log"):
        with contextlib.suppress(OSError):
            tail = (logs / name).read_text(errors="replace").splitlines()[-_LOG_LINES:]
            lines += [f"{name}: {line}" for line in tail if line.strip()]
    return "\n".join(lines)


def _numbers(answer: str) -> list[int]:
    return [int(word) for word in answer.split() if word.isdigit()]


def processes_of_pipe(pipe: Path) -> list[psutil.Process]:
    """Lists the daemon and servers of `pipe`: NVIDIA's programs with it in their environment."""
    return [process for process in psutil.process_iter() if _is_of_pipe(process, pipe)]


def _is_of_pipe(process: psutil.Process, pipe: Path) -> bool:
    try:
        if not any(_PROGRAM in word for word in process.cmdline()):
            return False
        return process.environ().get("CUDA_MPS_PIPE_DIRECTORY") == str(pipe)
    except (psutil.Error, OSError):  # it has just gone, is a zombie, or another user's
        return False


def wait_gone(pipe: Path, timeout: timedelta) -> list[psutil.Process]:
    """Waits until none of them runs; returns those that still do after `timeout`."""
    deadline_s = time.monotonic() + timeout.total_seconds()
    while (alive := processes_of_pipe(pipe)) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    return alive


def signal_all(pipe: Path, number: int) -> None:
    """Sends a signal to each of them, but not to a process that has reused a pid."""
    for process in processes_of_pipe(pipe):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
