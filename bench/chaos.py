#!/usr/bin/env python3
"""Strikes small runs of every mode at random moments, and checks what docs/reliability.md says.

    bench/chaos.py --kills 1000 --seed 1          prints one JSON line, and keeps it as a result
    bench/chaos.py --kills 100 --modes appo,es    only cases of these modes, as a result of its own
    bench/chaos.py --only 100042                  that case again, telling what it does

A case is a run of one mode, drawn with its strikes from the case's seed. A strike is one blow or
two to processes of the run (its launcher, its fork server, its GMIs and workers), at a random
moment: SIGKILL, SIGSTOP for less or for more than the deadline of a hang, SIGTERM and SIGINT to the
launcher, a disk that is full for a while, a clock that jumps by a minute or a day (`time.time` of
the run's processes alone), or a device that is lost: cores that the launcher may not use any more.
After each, the run goes on or ends as the page says; one that has ended is resumed, and the last
resume must finish. A third of the cases have a slow disk.

Full disks, and shared memory that is the case's alone, need the right to mount: without it full
disks are skipped, and counted.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ctypes
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml
from report import emit

from gmi_drl.report.policy_lineage import PolicyReader
from gmi_drl.roles.state import checkpoint

WITHIN_S: Final = 150.0  # what must come comes by then, on a machine however busy
HANG_S: Final = 6.0  # run.hang_timeout_s
LINGER_S: Final = 20.0  # of processes that end
_NEW_NAMESPACE, _PRIVATE, _SUBREAPER = 0x20000, 0x44000, 36  # of unshare, mount and prctl
_LIBC: Final = ctypes.CDLL(None)
_PPO: Final = {"network": [16], "horizon": 16, "minibatches": 2, "epochs": 1}
_DQN: Final = {
    "name": "dqn", "network": [16], "horizon": 8, "batch_size": 16, "replay_capacity": 2000,
    "replay_start": 100, "updates_per_row": 0.1,
}  # fmt: skip
_GAMES: Final = {
    "name": "alphazero", "network": [8], "blocks": 0, "games": 6, "simulations": 6,
    "play_simulations": 6, "batch_size": 8, "updates_per_row": 0.1, "gate_every": 2,
    "gate_games": 4, "gate_share": 0.3, "replay_capacity": 100,
}  # fmt: skip
_TWO_DEVICES: Final = {"hardware": {"num_gpus": 2}, "layout": {"gmi_per_gpu": 1}}
_A3C: Final = {"name": "a3c", "network": [16], "horizon": 8}
_A2C: Final = {
    "name": "a2c", "network": [16], "horizon": 8, "optimizer": "parameter_server",
    "normalize_value": False, "reward_scale": 0.1,
}  # fmt: skip
MODES: Final[dict[str, dict[str, Any]]] = {
    "tcg_ex": {},
    "one GMI": {"layout": {"gmi_per_gpu": 1}},
    "tdg_ex": {"layout": {"template": "tdg_ex"}},
    "async": {"mode": "async", "algorithm": _PPO | {"name": "impala"}, **_TWO_DEVICES},
    "appo": {"mode": "async", "algorithm": _PPO | {"name": "appo"}, **_TWO_DEVICES},
    "drop_slowest": {"algorithm": _PPO | {"drop_slowest": 1}},
    "a3c": {"algorithm": _A3C, "layout": {"template": "tdg_ex"}},
    "parameter_server": {"algorithm": _A2C, "layout": {"template": "parameter_server"}},
    "replay": {"algorithm": _DQN},
    "apex": {"mode": "async", "algorithm": _DQN, **_TWO_DEVICES},
    "es": {"algorithm": {"name": "es", "network": [8], "population": 32}},
    "alphazero": {"algorithm": _GAMES, "env": {"id": "TicTacToe-v0", "num_env": 2}},
    "serving": {"mode": "serving", "algorithm": {"network": [16]}, "layout": {"template": "tdg"}},
    "tune": {
        "env": {"id": "CartPole-v1", "num_env": "auto"}, "layout": {"gmi_per_gpu": "auto"},
        "tune": {"objective": "steps", "keep": "none", "max_num_env": 8, "budget_s": 15},
    },
    "search": {
        "layout": {"gmi_per_gpu": 1},
        "search": {
            "algorithm": "pbt", "population": 4, "interval_steps": 2048,
            "ranges": {"algorithm.learning_rate": {"log_uniform": [1e-4, 1e-2]}},
        },
    },
    "two devices": _TWO_DEVICES,
}  # fmt: skip
BLOWS: Final = {"kill": 5, "pause": 2, "stop": 1}  # how often; a pause is shorter than HANG_S
_JUMPS_S: Final = (-86_400, -60, 60, 86_400)
# A link is read and replaced at once; its text is what the clock is ahead by.
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


@dataclass(frozen=True)
class Blow:
    """Hits one process, or what all of them use."""

    victim: str  # "launcher", "fork server", "process" (any other), "disk", "clock", "device"
    what: str  # a key of BLOWS, "term" or "int"; "full", "jump", "loss" of the last three
    which: float  # of several, as a share of their number
    lasts_s: float  # of a pause, a stop, and a full disk
    after_s: float  # after the blow before

    @property
    def ends(self) -> bool:
        """Tells that the launcher ends of it."""
        return self.victim == "launcher" and self.what in ("kill", "term", "int")


@dataclass
class Outcome:
    """Tells what came of one case."""

    seed: int
    mode: str
    blows: list[list[str]] = field(default_factory=list)  # victim, blow, what came of the strike
    skipped: int = 0  # blows that had no victim, or may not be dealt here
    told: list[str] = field(default_factory=list)
    failure: str = ""


class Fault(Exception):
    """Something that docs/reliability.md rules out has happened."""


class Case:
    """One run and its strikes, all drawn from `seed`; `folder` is empty and for it alone."""

    def __init__(self, seed: int, folder: Path, tell: Callable[[str], None]) -> None:
        self._random = random.Random(seed)
        mode = _mode_of(seed)
        self.outcome = Outcome(seed, mode)
        self._mode, self._folder, self._tell_line = mode, folder, tell
        self._began_s = time.monotonic()
        self._launcher: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self._launches = 0
        self._was_full = False  # then metrics may have gaps, as documented
        self._cut_off = False  # then the lineage may have gaps, as documented
        self._others = set(_tree())
        self._disk = folder / "disk"
        self._private = _mounted(self._disk, "64m")
        for name in ("disk/tmp", "sockets", "site"):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        patches = _CLOCK.format(path=str(folder / "clock"))
        if self._random.random() < 1 / 3:
            patches += _SLOW_DISK
            self._tell("the disk is slow")
        (folder / "site" / "sitecustomize.py").write_text(patches)
        (self._disk / "config.yaml").write_text(yaml.safe_dump(self._config(seed)))

    def _config(self, seed: int) -> dict[str, Any]:
        sections: dict[str, Any] = {
            "version": 1,
            "run": {
                "name": "t", "folder": "runs", "seed": seed % 2**31, "total_steps": 8192,
                "checkpoint_every": 5, "eval_episodes": 2, "max_restarts": 1000,
                "hang_timeout_s": HANG_S,
            },
            "env": {"id": "CartPole-v1", "num_env": 8, "max_episode_steps": 50},
            "algorithm": _PPO,
            "layout": {"gmi_per_gpu": 2},
            "comm": {"timeout_s": 60},
        }  # fmt: skip
        for section, settings in MODES[self._mode].items():
            merge = section in ("env", "layout")
            sections[section] = sections[section] | settings if merge else settings
        return sections

    def strike(self, strikes: int) -> Outcome:
        """Strikes the run so many times, and lets it come to its end."""
        try:
            for _ in range(strikes):
                if self._launcher is None:
                    self._launch(self._random.randrange(3_000, 40_000))
                self._strike_once()
            for _ in range(3):  # the run in flight, and if it was a short one, another
                if self._launcher is None:
                    self._launch(2_000)
                self._until(lambda: not self._runs(), "the run's end")
                if self._ended() == 0:
                    break
            self._check_finished()
        except Fault as fault:
            self.outcome.failure = str(fault)
            self._tell(f"FAILED: {fault}")
            self._tell("".join(f"\n    | {line}" for line in self._output()[-3000:].splitlines()))
        finally:
            for pid in [*self._alive(), *([self._launcher.pid] if self._launcher else [])]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._launcher is not None:
                self._launcher.wait()
            if self._private:
                _LIBC.umount2(str(self._disk).encode(), 2)
        return self.outcome

    # The run ------------------------------------------------------------------------------------

    @property
    def _run(self) -> Path | None:
        """The newest folder of a run; None before it is there."""
        runs = (self._disk / "runs" / "t").glob("*")
        return max(runs, key=lambda path: path.stat().st_mtime_ns, default=None)

    def _launch(self, more: int) -> None:
        """Begins the run, or goes on with it, for `more` steps."""
        run = self._run
        words = {"tune": ["tune"], "search": ["search"]}.get(self._mode, ["launch"])
        steps = [] if self._mode in ("tune", "search") else [f"run.total_steps={more}"]
        if self._mode not in ("serving", "tune", "search") and run and self._checkpoints():
            done = self._metrics()[-1].get("steps", 0) if self._metrics() else 0
            words += ["--resume", str(run)]
            steps = [f"run.total_steps={done + more}"]
        else:
            words.append("config.yaml")
        self._tell(" ".join(words))
        path = os.pathsep.join([str(self._folder / "site"), *filter(None, sys.path)])
        self._launches += 1
        with open(self._folder / f"output{self._launches}", "wb") as output:
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "gmi_drl", *words, "--plain",
                 *(word for step in steps for word in ("--set", step))],
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self._disk,
                env=os.environ | {
                    "PYTHONPATH": path, "TMPDIR": str(self._disk / "tmp"),
                    "XDG_RUNTIME_DIR": str(self._folder / "sockets"),
                    "XDG_CACHE_HOME": str(self._disk / "cache"),
                    "TORCHINDUCTOR_CACHE_DIR": str(self._folder / "inductor"),
                },
            )  # fmt: skip
        self._status = None

    def _runs(self) -> bool:
        assert self._launcher is not None
        self._status = self._launcher.poll()
        return self._status is None

    def _output(self) -> str:
        file = self._folder / f"output{self._launches}"
        return file.read_text(errors="replace") if file.exists() else ""

    def _said(self, pattern: str, since: int) -> bool:
        return re.search(pattern, self._output()[since:]) is not None

    def _metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are whole."""
        with contextlib.suppress(OSError):
            text = (self._run / "metrics.jsonl").read_text() if self._run else ""
            return [json.loads(line) for line in text.split("\n")[:-1]]
        return []

    def _progress(self) -> int:
        """Grows as the work comes on."""
        if self._mode == "tune":
            files = [*(self._disk / "cache").rglob("*.jsonl")]
        elif self._mode == "search":
            files = [*(self._disk / "searches").rglob("*.jsonl")]
        else:
            return len(self._metrics())
        with contextlib.suppress(OSError):
            return sum(file.stat().st_size for file in files)
        return 0

    def _checkpoints(self) -> list[Path]:
        return sorted((self._run / "checkpoints").glob("iteration_*")) if self._run else []

    def _until(self, condition: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> None:
        deadline_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise Fault(f"not within {within_s:g} s: {what}")
            time.sleep(0.02)  # between two looks

    def _tell(self, text: str) -> None:
        line = f"{time.monotonic() - self._began_s:6.1f} s  {text}"
        self.outcome.told.append(line)
        self._tell_line(line)

    # Strikes ------------------------------------------------------------------------------------

    def _draw(self) -> list[Blow]:
        """Draws a strike: one blow, or two in three of ten."""
        draw = self._random
        blows = []
        for index in range(2 if draw.random() < 0.3 else 1):
            victim = draw.choice(("launcher", "fork server", "process", "process", "process"))
            what = draw.choices(list(BLOWS), list(BLOWS.values()))[0]
            if victim == "launcher" and what == "kill":
                what = draw.choice(("kill", "kill", "term", "int"))
            other = draw.random()
            if other < 0.1:
                victim, what = "disk", "full"
            elif other < 0.17:
                victim, what = "clock", "jump"
            elif other < 0.3 and self._mode == "two devices":
                victim, what = "device", "loss"
            lasts_s = HANG_S + draw.uniform(1, 4) if what == "stop" else draw.uniform(0.05, 2.0)
            after_s = draw.choice((0.0, draw.uniform(0, 0.5))) if index else 0.0
            blows.append(Blow(victim, what, draw.random(), lasts_s, after_s))
        return blows

    def _strike_once(self) -> None:
        """Waits for a moment, strikes, and checks what comes of it."""
        blows = self._draw()
        self._wait_for_a_moment()
        began, since = self._progress(), len(self._output())
        dealt, undo = [], []
        for blow in blows:
            time.sleep(blow.after_s)
            name, restore = self._deal(blow)
            if name:
                dealt.append((blow, name))
                undo.append((time.monotonic() + blow.lasts_s, restore))
            else:
                self.outcome.skipped += 1
        what = " and ".join(f"{blow.what} {name}" for blow, name in dealt)
        self._tell(f"{what or 'nothing to strike'} at {began}")
        result = "?"
        try:
            for at_s, restore in sorted(undo, key=lambda one: one[0]):
                while time.monotonic() < at_s and self._runs():
                    time.sleep(0.02)
                if restore is not None:
                    restore()
            result = self._judge(dealt, since)
        finally:
            self._tell(f"  {result}")
            for blow, _ in dealt:
                self.outcome.blows.append([blow.victim, blow.what, result])

    def _wait_for_a_moment(self) -> None:
        """Waits for some time after the launch, or until the work has come on somewhat."""
        early, late = self._random.uniform(0, 6), self._random.randrange(1, 12)
        if self._random.random() < 0.3:
            end_s = time.monotonic() + early
            self._until(lambda: not self._runs() or time.monotonic() > end_s, "a moment")
            return
        goal = self._progress() + late
        self._until(lambda: not self._runs() or self._progress() >= goal, f"progress {goal}")
        time.sleep(self._random.uniform(0, 0.05))  # so that it hits anywhere in an iteration

    def _deal(self, blow: Blow) -> tuple[str, Callable[[], object] | None]:
        """Deals a blow: who was hit ("": nobody), and what undoes it in time."""
        if blow.victim == "disk":
            self._was_full |= self._private
            self._cut_off |= self._private
            return ("the disk", self._fill()) if self._private else ("", None)
        if blow.victim == "clock":
            return self._jump(_JUMPS_S[int(blow.which * len(_JUMPS_S))]), None
        if blow.victim == "device":
            return self._take_a_core(blow.which), None
        victims = sorted(
            (pid, name)
            for pid, name in self._family().items()
            if blow.victim == (name if name in ("launcher", "fork server") else "process")
        )
        if not victims:
            return "", None
        pid, name = victims[int(blow.which * len(victims))]
        number = {"kill": "SIGKILL", "term": "SIGTERM", "int": "SIGINT"}.get(blow.what, "SIGSTOP")
        self._cut_off |= blow.ends

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        try:
            os.kill(pid, getattr(signal, number))
        except ProcessLookupError:
            return "", None
        is_stopped = number == "SIGSTOP" and not (blow.what == "stop" and name.startswith("gmi "))
        return name, go_on if is_stopped else None

    def _jump(self, by_s: int) -> str:
        """Sets the clock of the run's processes to so much ahead of ours."""
        (self._folder / "clock.new").symlink_to(str(by_s))
        (self._folder / "clock.new").replace(self._folder / "clock")
        return f"the clock by {by_s} s"

    def _take_a_core(self, which: float) -> str:
        """Keeps the launcher from a core, where it has another; "" where it has none.

        Before there are GMIs it would be another machine, for which the config does not fit.
        """
        assert self._launcher is not None
        if not any(name.startswith("gmi ") for name in self._family().values()):
            return ""
        with contextlib.suppress(ProcessLookupError):
            cores = sorted(os.sched_getaffinity(self._launcher.pid))
            if len(cores) > 1:
                lost = cores[int(which * len(cores))]
                os.sched_setaffinity(self._launcher.pid, set(cores) - {lost})
                return f"core {lost}"
        return ""

    def _fill(self) -> Callable[[], object]:
        """Leaves no room on the disk but a little; returns what makes room again."""
        ballast = self._disk / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        with contextlib.suppress(OSError):
            os.truncate(ballast, max(0, ballast.stat().st_size - self._random.randrange(1 << 16)))
        return lambda: ballast.unlink(missing_ok=True)

    def _family(self) -> dict[int, str]:
        """The processes of the run: their names by pid."""
        assert self._launcher is not None
        found = {self._launcher.pid: "launcher"}
        for pid, (parent, command) in _tree().items():
            if pid in self._others or pid in found:
                continue
            if parent == self._launcher.pid and re.search("fork ?server", command):
                found[pid] = "fork server"
                continue
            gmi = re.search(r"gmi-drl: (gmi [\d.]+)", command)
            found[pid] = gmi[1] if gmi else "process " + command[:60].strip()
        return found

    # What must hold -----------------------------------------------------------------------------

    def _judge(self, dealt: Sequence[tuple[Blow, str]], since: int) -> str:
        """Waits until the run has gone on or ended; Fault where the page says otherwise."""
        assert self._launcher is not None
        if any(blow.ends for blow, _ in dealt):
            self._until(lambda: not self._runs(), "the launcher's end")
        before = self._progress()
        self._until(lambda: not self._runs() or self._progress() > before + 1, "going on")
        if self._runs():
            for blow, name in dealt if len(dealt) == 1 else ():
                # A search runs a trial again without a word (docs/search.md).
                named = ("fork",) if self._mode in ("tune", "search") else ("gmi", "fork")
                if blow.what == "kill" and name.startswith(named):
                    pattern = rf"{name.split('.')[0]}\b.*killed by SIGKILL"
                    self._until(partial(self._said, pattern, since), pattern)
            if [blow.what for blow, _ in dealt] == ["loss"]:
                pattern = r"is lost: none of its cores"
                self._until(lambda: not self._runs() or self._said(pattern, since), pattern)
            return "went on"
        whom = {blow.what for blow, _ in dealt if blow.ends}
        full = any(blow.what == "full" for blow, _ in dealt)
        status = self._ended()
        if status == 0:
            return "finished"
        if "kill" in whom and status == -signal.SIGKILL:
            return "ended by SIGKILL"
        if whom & {"term", "int"} and status in (130, -signal.SIGTERM, -signal.SIGINT):
            return f"ended with {status}"
        text = self._output()
        if status == 1 and (full and "No space left" in text):
            return "failed: disk full"
        raise Fault(f"the launcher ended with {status}: {' '.join(text.splitlines()[-3:])}")

    def _ended(self) -> int:
        """Returns the exit status; Fault if something is left, or is not whole."""
        assert self._launcher is not None
        status = self._launcher.wait()
        self._launcher = None
        self._tell(f"  ended with {status}")
        self._until(lambda: not self._alive(), "the end of all that it had started", LINGER_S)
        text = self._output()
        if "Traceback (most recent call last)" in text and status != 0:
            raise Fault(f"a traceback: {text.splitlines()[-1]}")
        if self._run is not None:
            self._check_run(self._run)
        return status

    def _alive(self) -> dict[int, tuple[int, str]]:
        mine = {self._launcher.pid} if self._launcher is not None else set()
        return {pid: one for pid, one in _tree().items() if pid not in self._others | mine}

    def _check_run(self, run: Path) -> None:
        """Metrics are contiguous, every checkpoint is whole, and what is recorded can be read."""
        if (run / "run.json").exists():
            json.loads((run / "run.json").read_text())
        iterations = [line["iteration"] for line in self._metrics() if "iteration" in line]
        expected = list(range(1, len(iterations) + 1))
        if iterations != (sorted(set(iterations)) if self._was_full else expected):
            raise Fault(f"iterations of metrics.jsonl: {iterations}")
        for folder in self._checkpoints():
            checkpoint.find(folder).load("shared")
        store = run / "gcs.sqlite"
        if store.exists():
            with contextlib.closing(_opened(store)) as database:
                (said,) = database.execute("PRAGMA integrity_check").fetchone()
                if said != "ok":
                    raise Fault(f"{store.name}: {said}")

    def _check_finished(self) -> None:
        """Checks what the last resume has left: it has finished, whole, and nothing lies about."""
        if self._mode in ("tune", "search"):
            written = "tuned.yaml" if self._mode == "tune" else "searches/t/*/best.yaml"
            if not list(self._disk.glob(written)):
                raise Fault(f"{written} is not there")
        else:
            assert self._run is not None
            state = json.loads((self._run / "run.json").read_text())
            if state["state"] != "finished":
                raise Fault(f"run.json says {state['state']}")
            if self._mode != "serving":
                self._check_lineage(self._run, state["iteration"])
            hidden = list((self._run / "checkpoints").glob(".*"))
            if hidden:
                raise Fault(f"left in checkpoints: {hidden}")
        shm = list(Path("/dev/shm").iterdir()) if self._private else []
        left = [*(self._folder / "sockets").iterdir(), *(self._disk / "tmp").iterdir(), *shm]
        if left:
            raise Fault(f"left behind: {', '.join(map(str, left))}")

    def _check_lineage(self, run: Path, last: int) -> None:
        """Every version is recorded, but for those a killed launcher or a full disk has cost."""
        with contextlib.closing(_opened(run / "gcs.sqlite")) as store:
            known = {policy.version.number for policy in PolicyReader(store).chain()}
        missing = sorted(set(range(1, last + 1)) - known)
        self._tell(f"  {last} versions, {len(missing)} not recorded")
        if missing and not self._cut_off:
            raise Fault(f"versions not recorded: {missing}")


def _mode_of(seed: int) -> str:
    return list(MODES)[seed % len(MODES)]


def _modes(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in MODES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}; modes are {', '.join(MODES)}")
    return names


def _opened(store: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{store}?mode=ro", uri=True)


def _tree() -> dict[int, tuple[int, str]]:
    """Parent and command of every process that comes from this one, and runs."""
    everyone: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ")
                if fields[0] != "Z":
                    everyone[int(entry)] = int(fields[1]), command.decode(errors="replace")
    found, queue = {}, [os.getpid()]
    while queue:
        parent = queue.pop()
        children = {pid: one for pid, one in everyone.items() if one[0] == parent}
        found.update(children)
        queue += children
    return found


def _mounted(folder: Path, size: str) -> bool:
    """Makes `folder`, on a disk of its own of that size where that is allowed."""
    folder.mkdir()
    options = f"size={size}".encode()
    return not _LIBC.mount(b"none", str(folder).encode(), b"tmpfs", 0, options)


def run_case(seed: int, strikes: int, tell: Callable[[str], None]) -> Outcome:
    """Runs one case; its folder stays where it has failed."""
    # What a script starts in its background ignores SIGINT, and so would launchers.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)  # what loses its parent becomes ours, and is seen
    if _LIBC.unshare(_NEW_NAMESPACE) == 0:  # mounts are this process's, and go with it
        _LIBC.mount(b"none", b"/", None, _PRIVATE, None)
        _LIBC.mount(b"none", b"/dev/shm", b"tmpfs", 0, None)
    folder = Path(tempfile.mkdtemp(prefix="gdc-", dir="/tmp"))  # short: sockets lie in it
    outcome = Case(seed, folder, tell).strike(strikes)
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _in_process(seed: int, strikes: int) -> Outcome:
    """Runs a case in a process of its own."""
    words = [sys.executable, __file__, "--only", str(seed), "--strikes", str(strikes), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        return Outcome(**json.loads(done.stdout))
    except ValueError:
        failure = f"the harness has failed: {done.stderr[-2000:]}"
        return Outcome(seed, _mode_of(seed), failure=failure)


def table_of(outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[str, int]]]:
    """Counts blows by mode, by victim and kind, and by what came of them."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for outcome in outcomes:
        for victim, what, result in outcome.blows:
            rows = table.setdefault(outcome.mode, {}).setdefault(f"{what} {victim}", {})
            rows[result] = rows.get(result, 0) + 1
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="blows, all cases together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modes", type=_modes, default=[*MODES], help="separated by commas; all")
    parser.add_argument("--strikes", type=int, default=4, help="of each case")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--only", type=int, metavar="SEED", help="one case")
    parser.add_argument("--json", action="store_true", help="with --only: print its outcome")
    parser.add_argument("--dry", action="store_true", help="keep no result")
    options = parser.parse_args(arguments)
    if options.only is not None:
        tell = (lambda line: None) if options.json else print
        outcome = run_case(options.only, options.strikes, tell)
        if options.json:
            print(json.dumps(asdict(outcome)))
        return 1 if outcome.failure else 0
    outcomes: list[Outcome] = []
    dealt, first = 0, options.seed * 100_000
    seeds = (seed for seed in itertools.count(first) if _mode_of(seed) in options.modes)
    began_s = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running: set[concurrent.futures.Future[Outcome]] = set()
        while running or dealt < options.kills:
            while dealt < options.kills and len(running) < options.jobs:
                running.add(pool.submit(_in_process, next(seeds), options.strikes))
            done, running = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
            for outcome in (future.result() for future in done):
                outcomes.append(outcome)
                dealt += len(outcome.blows)
                said = f"FAILED: {outcome.failure}" if outcome.failure else "as documented"
                print(f"{dealt} blows; {outcome.seed}, {outcome.mode}: {said}", file=sys.stderr)
                if outcome.failure:
                    print("\n".join(outcome.told), file=sys.stderr, flush=True)
    failures = [
        {"seed": outcome.seed, "mode": outcome.mode, "what": outcome.failure[:500]}
        for outcome in outcomes if outcome.failure
    ]  # fmt: skip
    found: dict[str, Any] = {
        "blows": dealt, "cases": len(outcomes), "kills": sum(
            what == "kill" for outcome in outcomes for _, what, _ in outcome.blows
        ), "skipped": sum(outcome.skipped for outcome in outcomes), "seed": options.seed,
        "seconds": round(time.monotonic() - began_s), "failures": failures,
        "table": table_of(outcomes),
    }  # fmt: skip
    name = "failures"
    if options.modes != [*MODES]:
        name += f" in {', '.join(options.modes)}"
    if options.dry:
        print(json.dumps(found))
    else:
        emit(
            "chaos", name, value=len(failures), unit="cases", peer=None, ratio=None,
            repeats=len(outcomes), spread=None, **found,
        )  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
