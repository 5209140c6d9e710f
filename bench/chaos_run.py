"""The run of a case of chaos.py: its launchers, its disk, its processes and its files."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
import yaml
from chaos_modes import ON_HOSTS, config_of
from chaos_ray import RayCluster, is_rays, name_of

from gmi_drl.launcher.folder.resize_request import REQUEST, ResizeRequest, make_request

WITHIN_S: Final = 150.0  # until a condition holds; again as long while the run makes progress
_LINGER_S: Final = 20.0  # of processes that end
_LINGER_ON_RAY_S: Final = 30.0
LIBC: Final = ctypes.CDLL(None)
_HOSTS: Final = Path(__file__).with_name("chaos_hosts.py")
# A link is read and replaced atomically; its text is by how many seconds the clock is ahead.
_CLOCK: Final = """
import os, time
_time = time.time
def now_s():
    try:
        return _time() + int(os.readlink({path!r}))
    except OSError:
        return _time()
time.time, time.time_ns = now_s, lambda: int(now_s() * 1e9)
"""
_SLOW_DISK: Final = """
import os, time
_fsync = os.fsync
def fsync(file):
    time.sleep(0.2)
    _fsync(file)
os.fsync = fsync
"""


class Fault(Exception):
    """Something that docs/reliability.md rules out has happened."""


class Run:
    """A run of one mode in an empty `folder` that is for it alone.

    It is launched again, or resumed, as often as it is struck down.
    """

    def __init__(
        self,
        mode: str,
        seed: int,
        folder: Path,
        *,
        slow: bool,
        on_ray: bool,
        tell: Callable[[str], None],
    ) -> None:
        self.mode, self.disk, self.tell = mode, folder / "disk", tell
        self.launcher: subprocess.Popen[bytes] | None = None
        self._folder, self._launches = folder, 0
        self.began = 0  # its progress when it was launched last
        self._made_s = time.monotonic()
        self._others = set(_tree())
        self.has_own_disk = _mounted(self.disk, "64m")  # and its own shared memory
        for name in ("disk/tmp", "sockets", "site", "hosts/ray"):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        patches = _CLOCK.format(path=str(folder / "clock")) + (_SLOW_DISK if slow else "")
        (folder / "site" / "sitecustomize.py").write_text(patches)
        (self.disk / "config.yaml").write_text(yaml.safe_dump(config_of(mode, seed)))
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(folder / "site"), *filter(None, sys.path)]),
            "TMPDIR": str(self.disk / "tmp"),
            "XDG_RUNTIME_DIR": str(folder / "sockets"),
            "XDG_CACHE_HOME": str(self.disk / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        self._linger_s = _LINGER_ON_RAY_S if on_ray else _LINGER_S
        self._ray: RayCluster | None = None
        if on_ray:  # which writes into temporary files, too
            self._ray = RayCluster(self._environment | {"TMPDIR": str(folder / "hosts")})
            self._environment |= self._ray.token

    @property
    def folder(self) -> Path | None:
        """Returns the newest folder of a run; None before there is one."""
        runs = (self.disk / "runs" / "t").glob("*")
        return max(runs, key=lambda path: path.stat().st_mtime_ns, default=None)

    def launch(self, more: int) -> None:
        """Begins the run, or resumes it, for `more` steps."""
        run, is_trained = self.folder, self.mode not in ("serving", "tune", "search")
        arguments = [self.mode if self.mode in ("tune", "search") else "launch"]
        steps = more
        if is_trained and run and self.checkpoints():
            steps += self.metrics()[-1].get("steps", 0) if self.metrics() else 0
            arguments += ["--resume", str(run)]
        else:
            arguments.append("config.yaml")
        self.tell(" ".join(arguments))
        self.began = self.progress()
        if arguments[0] == "launch":
            arguments += ["--set", f"run.total_steps={steps}"]
        program = ["-m", "gmi_drl"]
        if self._ray is not None:
            arguments += ["--set", f"cluster.address={self._ray.address}"]
        elif self.mode in ON_HOSTS:
            program = [str(_HOSTS)]
        self._launches += 1
        with open(self._folder / f"output{self._launches}", "wb") as output:
            self.launcher = subprocess.Popen(
                [sys.executable, *program, *arguments, "--plain"],
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.disk,
                env=self._environment,
            )  # fmt: skip

    def runs(self) -> bool:
        """Tells whether its launcher is running."""
        return self.launcher is not None and self.launcher.poll() is None

    def ended(self) -> int:
        """Waits for the launcher, and for all that it has started; returns its exit status."""
        status = self.launcher.wait()
        self.launcher = None
        self.tell(f"  ended with {status}")
        awaited = "the end of all that it had started"
        self.until(lambda: not self._remaining(), awaited, self._linger_s, works=False)
        return status

    def close(self) -> None:
        """Ends all of its processes that are left."""
        for pid in [*self._remaining(), *([self.launcher.pid] if self.launcher else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.launcher is not None:
            self.launcher.wait()
        if self._ray is not None:
            self._ray.close()
        if self.has_own_disk:
            LIBC.umount2(str(self.disk).encode(), 2)

    def until(
        self,
        condition: Callable[[], Any],
        what: str,
        within_s: float = WITHIN_S,
        *,
        works: bool = True,
    ) -> None:
        """Waits for a condition; Fault if it does not come in time.

        With `works` the deadline is extended by `within_s` as long as the run makes progress.
        """
        last_progress, deadline_s = self.progress(), time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline_s:
                if not works or (progress := self.progress()) == last_progress:
                    raise Fault(f"not within {within_s:g} s: {what}")
                last_progress, deadline_s = progress, time.monotonic() + within_s
            time.sleep(0.02)  # between two looks

    def output(self) -> str:
        """Returns what the last launcher has printed."""
        file = self._folder / f"output{self._launches}"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def age_s(self) -> float:
        """Returns the seconds since this object was made, before anything was launched."""
        return time.monotonic() - self._made_s

    def said(self, pattern: str, since: int) -> bool:
        """Tells whether its output matches the pattern after the first `since` characters."""
        return re.search(pattern, self.output()[since:]) is not None

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl that are whole."""
        with contextlib.suppress(OSError):
            text = (self.folder / "metrics.jsonl").read_text() if self.folder else ""
            return [json.loads(line) for line in text.split("\n")[:-1]]
        return []

    def progress(self) -> int:
        """Returns a number that grows as the run makes progress."""
        if self.mode == "tune":
            files = [*(self.disk / "cache").rglob("*.jsonl")]
        elif self.mode == "search":
            files = [*(self.disk / "searches").rglob("*.jsonl")]
        else:
            return len(self.metrics())
        with contextlib.suppress(OSError):
            return sum(file.stat().st_size for file in files)
        return 0

    def checkpoints(self) -> list[Path]:
        """Returns the folders of its checkpoints, the oldest first."""
        return sorted((self.folder / "checkpoints").glob("iteration_*")) if self.folder else []

    def ask_resize(self) -> None:
        """Asks for two GMIs where it has one, and for one where it has two, if it can be asked."""
        if self.folder is None or not (lines := self.metrics()):
            return
        gmis = 3 - len(lines[-1]["gmi_seconds"])
        request = ResizeRequest(uuid.uuid4().hex, (f"layout.gmi_per_gpu={gmis}",))
        with contextlib.suppress(OSError):  # a request is waiting already, or the disk is full
            make_request(self.folder, request)
            self.tell(f"asked for {gmis} GMIs")

    def is_resizing(self) -> bool:
        """Tells whether it has a request to resize that is not answered yet."""
        return self.folder is not None and (self.folder / REQUEST).exists()

    def processes(self) -> dict[int, str]:
        """Returns the names of its processes, by pid."""
        others = self._remaining()
        rays = {pid: process for pid, process in _tree().items() if name_of(process[1])}
        hosts = {pid: "host" for pid, (_, command) in others.items() if "host_launcher" in command}
        names = {self.launcher.pid: "launcher", **hosts}
        for pid, (parent, command) in others.items():
            gmi = re.search(r"gmi-drl: (gmi [\d.]+)", command)
            if parent in (self.launcher.pid, *hosts) and re.search("fork ?server", command):
                names[pid] = "fork server"
            elif pid not in hosts:
                names[pid] = gmi[1] if gmi else "process " + command[:60].strip()
        return names | {pid: name_of(command) or "" for pid, (_, command) in rays.items()}

    def jump(self, by_s: int) -> None:
        """Sets the clock of its processes ahead of ours by `by_s` seconds."""
        (self._folder / "clock.new").symlink_to(str(by_s))
        (self._folder / "clock.new").replace(self._folder / "clock")

    def left_files(self) -> list[Path]:
        """Returns files in places where a run that has ended must leave nothing."""
        shm = list(Path("/dev/shm").iterdir()) if self.has_own_disk else []
        hosts = [path for path in (self._folder / "hosts").iterdir() if path.name != "ray"]
        sockets, files = (self._folder / "sockets").iterdir(), (self.disk / "tmp").iterdir()
        return [*sockets, *files, *hosts, *shm]

    def _remaining(self) -> dict[int, tuple[int, str]]:
        """Returns its processes without the launcher and those of Ray itself, by pid."""
        launcher_pids = {self.launcher.pid} if self.launcher is not None else set()
        others = self._others | launcher_pids
        return {
            pid: process
            for pid, process in _tree().items()
            if pid not in others and not (self._ray is not None and is_rays(process[1]))
        }


def _tree() -> dict[int, tuple[int, str]]:
    """Returns parent and command of every running descendant of this process, by pid."""
    tree = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if process.status() != psutil.STATUS_ZOMBIE:
                tree[process.pid] = process.ppid(), " ".join(process.cmdline())
    return tree


def _mounted(folder: Path, size: str) -> bool:
    """Makes `folder`; tells whether a file system of its own is mounted on it."""
    folder.mkdir()
    options = f"size={size}".encode()
    return not LIBC.mount(b"none", str(folder).encode(), b"tmpfs", 0, options)
