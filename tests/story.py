"""One run that is struck by random signals, over and over, and resumed each time it ends.

A strike is a signal to one process of the run (its launcher, its fork server, a GMI) at a random
moment, counted from a line of metrics.jsonl. After each the run either goes on or ends, and `Story`
checks what docs/recovery.md says of that: who is named, that no process stays, that metrics and
checkpoints are whole.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

import killers
from gmi_drl.roles.state import checkpoint

WITHIN_S = 180  # for what must come in the end, on a machine however busy
KILL, STOP, TERM, INT = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT
KINDS = {
    "tcg_ex": {},
    "one GMI": {"layout": {"gmi_per_gpu": 1}},
    "tdg_ex": {"layout": {"template": "tdg_ex"}},
    "async": {"mode": "async", "hardware": {"num_gpus": 2}, "layout": {"gmi_per_gpu": 1}},
}


@dataclass(frozen=True)
class Strike:
    """Signals to one process of a run, and after them perhaps one to its launcher."""

    victim: str  # "launcher", "fork server" or "gmi": one of them, drawn
    signals: tuple[signal.Signals, ...]
    launcher: signal.Signals | None = None

    def __str__(self):
        sent = " and ".join(number.name for number in self.signals)
        after = f", then {self.launcher.name} to the launcher" if self.launcher else ""
        return f"{sent} to the {self.victim}{after}"


STRIKES = {  # and how often, of 25
    Strike("gmi", (KILL,)): 9,
    Strike("gmi", (STOP,)): 1,
    Strike("launcher", (KILL,)): 3,
    Strike("launcher", (STOP, KILL)): 1,
    Strike("launcher", (TERM,)): 2,
    Strike("launcher", (INT,)): 2,
    Strike("fork server", (KILL,)): 4,
    Strike("fork server", (STOP,), KILL): 1,
    Strike("gmi", (STOP,), KILL): 1,
    Strike("fork server", (KILL,), KILL): 1,
}


def config(folder, kind, seed):
    """A run of `kind` that trains until it is struck."""
    sections = {
        "version": 1,
        "run": {
            "name": "t", "folder": str(folder / "runs"), "seed": seed, "total_steps": 10**9,
            "checkpoint_every": 5, "eval_episodes": 2, "max_restarts": 1000, "hang_timeout_s": 10,
        },
        "env": {"id": "CartPole-v1", "num_env": 8, "max_episode_steps": 50},
        "algorithm": {"network": [16], "horizon": 16, "minibatches": 2, "epochs": 1},
        "layout": {"gmi_per_gpu": 2},
        "comm": {"timeout_s": 60},
    }  # fmt: skip
    for section, settings in KINDS[kind].items():
        sections[section] = sections.get(section, {}) | settings if section != "mode" else settings
    if kind == "async":
        sections["algorithm"]["name"] = "impala"
    return sections


class Story:
    """One run, of a kind and with strikes drawn from `seed`."""

    def __init__(self, folder, seed):
        self._random = random.Random(seed)
        self._kind = self._random.choice(list(KINDS))
        self._told = [f"seed {seed}, {self._kind}"]  # for whoever reads a failure
        self._folder = folder
        self._output = folder / "output.txt"
        self._launcher = None
        self._others = {pid for pid, _ in killers.descendants()}  # of tests before this one
        (folder / "config.yaml").write_text(yaml.safe_dump(config(folder, self._kind, seed)))

    def strike(self, count):
        """Strikes the run `count` times, and then lets it come to its end."""
        try:
            for _ in range(count):
                if self._launcher is None:
                    self._launch()
                self._strike_once()
            if self._launcher is not None:
                self._send(self._launcher.pid, TERM)
                self._ended()
            self._finish()
        except AssertionError as error:
            text = self._output.read_text()[-6000:]
            raise AssertionError("\n".join([str(error), *self._told, text])) from error
        finally:
            if self._launcher is not None:
                self._launcher.kill()
                self._launcher.wait()

    # The run ------------------------------------------------------------------------------------

    @property
    def _run(self):
        """The run's folder; None before it is there."""
        return next(iter(self._folder.glob("runs/t/*")), None)

    def _launch(self, *options):
        """Begins the run, or goes on with it."""
        resume = self._run is not None
        what = ["--resume", self._run] if resume else [self._folder / "config.yaml"]
        self._told.append(f"resumed after iteration {self._iterations()}" if resume else "launched")
        with open(self._output, "wb") as output:
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "gmi_drl", "launch", *map(str, what), "--plain", *options],
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip

    def _metrics(self):
        """The lines of metrics.jsonl that are whole."""
        try:
            text = (self._run / "metrics.jsonl").read_text()
        except (FileNotFoundError, TypeError):
            return []
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def _iterations(self):
        lines = self._metrics()
        return lines[-1]["iteration"] if lines else 0

    def _checkpoints(self):
        return sorted((self._run / "checkpoints").glob("iteration_*"))

    def _until(self, condition, what):
        deadline_s = time.monotonic() + WITHIN_S
        while not (found := condition()):
            assert time.monotonic() < deadline_s, f"not within {WITHIN_S} s: {what}"
            time.sleep(0.02)  # between two looks
        return found

    def _said(self, since, words):
        return re.search(words, self._output.read_text()[since:])

    # Strikes ------------------------------------------------------------------------------------

    def _strike_once(self):
        """Waits for a moment, strikes, and checks what comes of it.

        A run without a checkpoint cannot be resumed, so the first strike waits for one.
        """
        strike = self._random.choices(list(STRIKES), list(STRIKES.values()))[0]
        at = self._iterations() + self._random.randrange(1, 12)
        self._until(
            lambda: (
                (self._iterations() >= at and self._checkpoints())
                or self._launcher.poll() is not None
            ),
            f"iteration {at} and a checkpoint",
        )
        assert self._launcher.poll() is None, "the run ended by itself"
        time.sleep(self._random.uniform(0, 0.05))  # so that it hits anywhere in an iteration
        victim, pid = self._drawn(strike.victim)
        self._told.append(f"{strike} ({victim}) after iteration {self._iterations()}")
        since = len(self._output.read_text())
        for number in strike.signals:
            self._send(pid, number)
        if strike.launcher is not None:
            self._send(self._launcher.pid, strike.launcher)
        if strike.victim == "launcher" or strike.launcher is not None:
            self._ended()
            return
        self._until(
            lambda: self._said(since, rf"{victim}\b") or self._launcher.poll() is not None,
            f"{victim} is named",
        )
        before = self._iterations()
        self._until(
            lambda: self._iterations() > before + 1 or self._launcher.poll() is not None,
            f"going on after {strike}, or an end",
        )
        if self._launcher.poll() is not None:
            assert self._said(since, rf"{victim}\b"), f"{victim} is not named"
            self._ended()

    def _drawn(self, kind):
        """The name and pid of a process of this kind."""
        if kind == "launcher":
            return kind, self._launcher.pid
        if kind == "fork server":
            found = self._until(self._fork_servers, "a fork server")
        else:
            found = self._until(self._gmis, "a GMI")
        return self._random.choice(sorted(found.items()))

    def _fork_servers(self):
        found = [
            pid
            for pid, command in killers.descendants()
            if re.search(r"fork ?server", command) and _parent(pid) == self._launcher.pid
        ]
        return {"fork server": found[0]} if found else {}

    def _gmis(self):
        """{"gmi 0": pid, ...} of those that run."""
        found = {}
        for pid, _ in killers.descendants():
            with contextlib.suppress(OSError):
                log = re.fullmatch(r".*/logs/gmi(\d+)\.log", os.readlink(f"/proc/{pid}/fd/1"))
                if log:
                    found[f"gmi {log[1]}"] = pid
        return found

    def _send(self, pid, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    # What must hold -----------------------------------------------------------------------------

    def _ended(self):
        """The launcher ends, all that it had started too, and what is on the disk is whole."""
        self._until(lambda: self._launcher.poll() is not None, "the launcher's end")
        self._told.append(f"the launcher ended with {self._launcher.returncode}")
        self._launcher = None
        self._until(lambda: not self._alive(), "the end of all that it had started")
        if self._run is not None:
            json.loads((self._run / "run.json").read_text())
            self._check_whole()

    def _alive(self):
        """Processes that came from the run."""
        return [one for one in killers.descendants() if one[0] not in self._others]

    def _check_whole(self):
        """No line of the metrics is missing or there twice, and every checkpoint is whole."""
        iterations = [line["iteration"] for line in self._metrics()]
        assert iterations == sorted(set(iterations)), f"iterations {iterations}"
        if self._kind != "async":
            assert iterations == list(range(1, len(iterations) + 1)), f"iterations {iterations}"
        for folder in self._checkpoints():
            whole = checkpoint.find(folder)
            whole.load("shared")

    def _finish(self):
        """Resumes it with little left to do: it ends as one that was never struck."""
        steps = self._metrics()[-1]["steps"] if self._metrics() else 0
        self._launch("--set", f"run.total_steps={steps + 2000}")
        self._until(lambda: self._launcher.poll() is not None, "the run's end")
        assert self._launcher.returncode == 0
        self._ended()
        state = json.loads((self._run / "run.json").read_text())
        assert state["state"] == "finished"
        assert state["iteration"] == self._iterations()
        assert state["eval_return"] > 0
        left = [entry.name for entry in (self._run / "checkpoints").iterdir()]
        assert all(re.fullmatch(r"iteration_\d{6}", name) for name in left), f"left: {left}"


def _parent(pid):
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None
