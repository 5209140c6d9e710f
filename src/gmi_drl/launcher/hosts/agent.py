"""The agent on each host of a cluster: an actor of Ray's that starts our launcher, and talks to it.

The launcher is a process of its own, so that GMIs inherit nothing of Ray's (thread counts, devices,
signal handlers), and whose end does not depend on Ray: it ends with its agent, and when the driver
has been silent for ten seconds.
"""

from __future__ import annotations

import os
import pickle
import platform
import socket
import subprocess
import sys
import threading
import time
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from gmi_drl.runtime.errors import exit_text

from .messages import SILENCE_S, HostFacts, Orders, Report

# Two versions of MuJoCo, or of Gymnasium, are two environments.
_PACKAGES: Final = ("gmi-drl", "torch", "numpy", "gymnasium", "mujoco")
_GRACE_S: Final = 20.0  # for the launcher to end by itself
_TAIL: Final = 4096  # bytes of its log that are told
# Variables that Ray sets in its workers. The devices, last, may be those of this launch.
_RAY_KEYS: Final = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "CUDA_VISIBLE_DEVICES")


class NodeAgent:
    """Represents one host. Methods return at once, except `end`."""

    def __init__(self, devices: bool) -> None:
        """`devices`: Ray has set GPUs aside for this launch, and names them."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RAY_") and name not in (_RAY_KEYS[:2] if devices else _RAY_KEYS)
        }
        orders, self._orders = _pipe()
        self._reports, reports = _pipe()
        self._log = os.memfd_create("gmi-drl-launcher-log", os.MFD_CLOEXEC)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gmi_drl.launcher.hosts.host_launcher", str(reports.fileno())],
            stdin=orders.fileno(), stdout=self._log, stderr=self._log, env=environment,
            pass_fds=[reports.fileno()], start_new_session=True,
        )  # fmt: skip
        orders.close()
        reports.close()
        self._lock = threading.Lock()
        self._said: list[bytes] = []  # pickles of reports that nobody has asked for yet
        self._send_lock = threading.Lock()  # one at a time: of two that are long, pieces would mix
        self._last_order_s = time.monotonic()
        self._is_over = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def facts(self) -> HostFacts:
        """Says who this host is."""
        import ray

        return HostFacts(
            address=ray.util.get_node_ip_address(),
            name=socket.gethostname(),
            node_id=ray.get_runtime_context().get_node_id(),
            versions=own_versions(),
        )

    def clock(self) -> float:
        """Tells what time it is here, in seconds since 1970."""
        return time.time()

    def tell(self, message: Any) -> None:
        """Hands a message to the launcher: bytes of a pickle, as it may hold the user's classes."""
        with self._lock:
            self._last_order_s = time.monotonic()
        try:
            with self._send_lock:
                self._orders.send_bytes(message)
        except OSError:  # it has ended, which the next report says
            return

    def talk(self, orders: Orders) -> list[bytes]:
        """Hands orders to the launcher; returns pickles of its reports since the last call."""
        self.tell(pickle.dumps(orders))
        with self._lock:
            said, self._said = self._said, []
        return said

    def end(self) -> None:
        """Returns when the launcher and all of its processes are gone."""
        self._is_over.set()
        self._orders.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its GMIs end with it

    def _read(self) -> None:
        """Takes in what the launcher says until it ends."""
        while True:
            try:
                report = self._reports.recv_bytes()
            except (EOFError, OSError):
                break
            with self._lock:
                self._said.append(report)
        status = self._process.wait()
        end = exit_text(status, None) if status >= 0 else exit_text(None, -status)
        size = os.lseek(self._log, 0, os.SEEK_END)
        tail = os.pread(self._log, _TAIL, max(0, size - _TAIL)).decode(errors="replace").strip()
        report = pickle.dumps(Report(ended=f"its launcher {end}" + (f":\n{tail}" if tail else "")))
        with self._lock:
            self._said.append(report)
        while not self._is_over.wait(1.0):
            if time.monotonic() - self._last_order_s > SILENCE_S:
                self.leave()

    def leave(self) -> None:
        """Ends this process: nobody asks any more, and Ray may not know for a long time."""
        os._exit(0)


def _pipe() -> tuple[Connection, Connection]:
    reader, writer = os.pipe()
    return Connection(reader, writable=False), Connection(writer, readable=False)


def own_versions() -> dict[str, str]:
    """Returns the versions that all hosts have to agree in, as they are here."""
    versions = {"Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    return versions


def node_and_versions() -> tuple[str, dict[str, str]]:
    """Returns Ray's id of this host, and its versions."""
    import ray

    return ray.get_runtime_context().get_node_id(), own_versions()


def same_folder(folder: Path, started: float, within_s: float) -> bool:
    """Tells whether a host sees the run's folder that the driver has made."""
    import json

    deadline_s = time.monotonic() + within_s
    while True:
        try:
            if json.loads((folder / "run.json").read_text(encoding="utf-8"))["started"] == started:
                return True
        except (OSError, ValueError, KeyError):
            pass
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.2)  # file systems of networks show what is new after a moment
