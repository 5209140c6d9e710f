"""Runs whole training jobs, ours and the peers', as processes and reads what they measured.

A peer's job is a script in `bench/peers`, run by an interpreter that has the peer; ours is
`gmi-drl launch` on a configuration written for the occasion. Both are given the same
`Settings` and both are timed over the training loop after its warm-up iterations, imports and
construction left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from peers._job import Settings, tree_cpu_s
from report import end, metrics_of

from gmi_drl.launcher.folder.run_folder import last_metrics

BENCH = Path(__file__).resolve().parent
STOP = threading.Event()  # set: jobs under way in any thread end with a JobError
_TESTS = BENCH.parent / "tests"
_FRONT = "import sys; from gmi_drl.cli.main import main; sys.exit(main())"
# GMIs are forked from a server with these preloads, and so see the faked number of cores.
_FRONT_ON_SHARED_CORES = f"""\
import fake_cores
from gmi_drl.launcher.start import preload
preload.PRELOAD = ("fake_cores", *preload.PRELOAD)
{_FRONT}
"""
_TAIL = 20  # lines of a failed job's log that its error shows
_METRICS = "bench/*/metrics.jsonl"  # of each run, in the folder of runs
_CHECKPOINTS = 40  # of a kept run
# Fields of its config that may differ: what is learned is the same.
_FREE = ("run.folder", "run.checkpoint_every", "hardware.cores")


class JobError(RuntimeError):
    """A job failed or ran past its deadline; the text ends with the end of its log."""


@dataclass(frozen=True)
class Job:
    """Holds what one finished job measured."""

    steps_per_s: float
    cpu_s_per_1000_steps: float | None
    seconds: float
    steps: int
    curve: list[tuple[int, float]]
    evaluation: dict[str, Any] | None = None
    simulate_steps_per_s: float | None = None  # ours only
    versions: dict[str, str] = field(default_factory=dict)


def importable(python: str, script: str, vec: str) -> str | None:
    """Returns None if this peer runs under `python`, else the last line of its error."""
    command = [python, str(BENCH / "peers" / script), f"--vec={vec}", "--check"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except OSError as error:
        return str(error)
    if completed.returncode == 0:
        return None
    return (completed.stderr.strip().splitlines() or [f"exit code {completed.returncode}"])[-1]


def on_cores(cores: Sequence[int] | None, command: list[str]) -> list[str]:
    """Returns `command` confined to these cores from its first instruction on."""
    if cores is None:
        return command
    confine = "import os,sys; os.sched_setaffinity(0,{%s}); os.execvp(sys.argv[1],sys.argv[1:])"
    return [sys.executable, "-c", confine % ",".join(map(str, cores)), *command]


def run_peer(
    python: str,
    script: str,
    settings: Settings,
    timeout: timedelta,
    cores: Sequence[int] | None = None,
) -> Job:
    """Runs one peer's job to its end."""
    command = [python, str(BENCH / "peers" / script), *settings.arguments()]
    return _run_script(command, script, timeout, cores)


def run_rl(
    settings: Settings,
    optimizer: str,
    evaluators: int,
    timeout: timedelta,
    cores: Sequence[int] | None = None,
    algorithm: dict[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
) -> Job:
    """Trains this job from Python, by an optimizer of `gmi_drl.rl` over `evaluators` of them."""
    config = our_config(settings, Path(), evaluators, algorithm=algorithm, wrappers=wrappers)
    script = BENCH / "rl" / "job.py"
    command = [sys.executable, str(script), optimizer, str(evaluators), json.dumps(config)]
    return _run_script(command, script.name, timeout, cores)


def _run_script(
    command: list[str], script: str, timeout: timedelta, cores: Sequence[int] | None
) -> Job:
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as folder:
        out, log = Path(folder, "out"), Path(folder, "log")
        _run(on_cores(cores, command), out, log, timeout, lambda pid: None)
        try:
            line = json.loads(out.read_text().strip().splitlines()[-1])
        except (ValueError, IndexError) as error:
            raise JobError(f"{script} printed no result: {error}\n{_tail(log)}") from None
    return Job(
        steps_per_s=line["steps_per_s"],
        cpu_s_per_1000_steps=line["cpu_seconds_per_1000_steps"],
        seconds=line["seconds"],
        steps=line["steps"],
        curve=[(int(steps), value) for steps, value in line["curve"]],
        evaluation=line.get("evaluation"),
        versions=line["versions"],
    )


def our_config(
    settings: Settings,
    folder: Path,
    gmi_per_gpu: int = 1,
    cores: Sequence[int] | None = None,
    algorithm: dict[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
    sections: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the job of `settings` as a config; `algorithm` overrides single fields.

    Environments are wrapped in `wrappers`, and divided among the `gmi_per_gpu` GMIs that sample.
    `sections` overrides single fields of other sections, and top-level keys such as `mode`.

    Settings of PPO alone are left out when `algorithm.name` is another one.
    """
    for total, unit in ((settings.n_envs, "environments"), (settings.minibatch, "samples")):
        if total % gmi_per_gpu:
            raise ValueError(f"{total} {unit} do not divide among {gmi_per_gpu} GMIs; change one.")
    algorithm = algorithm or {}
    if algorithm.get("name", "ppo") == "ppo":
        algorithm = {
            "minibatches": settings.batch // settings.minibatch,
            "epochs": settings.epochs,
            "lam": settings.lam,
            "clip": settings.clip,
            "entropy_coef": settings.entropy_coef,
            "init_log_std": settings.init_log_std,
            **algorithm,
        }
    config: dict[str, Any] = {
        "version": 1,
        "run": {
            "name": "bench",
            "seed": settings.seed,
            "total_steps": settings.iterations * settings.batch,
            "folder": str(folder),
            "checkpoint_every": 0,
            "log_every": 1,
            "eval_episodes": settings.evaluate,
        },
        "env": {
            "id": settings.env,
            "num_env": settings.n_envs // gmi_per_gpu,
            "wrappers": list(wrappers),
        },
        "algorithm": {
            "network": settings.hidden,
            "activation": settings.activation,
            "horizon": settings.horizon,
            "gamma": settings.gamma,
            "learning_rate": settings.learning_rate,
            "schedule": settings.schedule,
            "max_grad_norm": settings.max_grad_norm,
            "normalize_observation": settings.normalize_observation,
            **algorithm,
        },
        "hardware": {
            "backend": "cpu",
            "num_gpus": 1,
            **({} if cores is None else {"cores": list(cores)}),
        },
        "layout": {"template": "tcg_ex", "gmi_per_gpu": gmi_per_gpu},
    }
    for key, value in (sections or {}).items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, Mapping) else value
    return config


def run_ours(
    settings: Settings,
    timeout: timedelta,
    gmi_per_gpu: int = 1,
    cores: Sequence[int] | None = None,
    algorithm: dict[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    wrappers: Sequence[Any] = (),
    sections: Mapping[str, Any] | None = None,
    gmis: int = 1,
    keep: Path | None = None,
    resume: bool = False,
) -> Job:
    """Runs `gmi-drl launch` on this job to its end; `progress` is called with the steps taken.

    If it has more GMIs than `cores`, they share the cores, which a user's job may not: what it
    learns is the same, but its speed is not comparable.

    The run is in folder `keep`, with a checkpoint after each fortieth of its iterations; or in a
    temporary folder, without checkpoints. With `resume` the newest run in `keep` that has a
    checkpoint goes on, on any core, or is only read if it is finished. Seconds and steps/s are then
    those of training, without the pause, and CPU seconds are None: they are known of the last part
    alone.
    """
    sharing = cores is not None and gmis > len(cores)
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as name:
        folder = Path(name)
        home = folder if keep is None else keep.resolve()
        config, runs = home / "config.yaml", home / "runs"
        job = our_config(
            settings, runs, gmi_per_gpu, None if sharing else cores,
            algorithm=algorithm, wrappers=wrappers, sections=sections,
        )  # fmt: skip
        if keep is not None:
            job["run"]["checkpoint_every"] = max(1, settings.iterations // _CHECKPOINTS)
        run = _kept_run(home, job) if resume else None
        if run is None:
            home.mkdir(parents=True, exist_ok=True)
            config.write_text(yaml.safe_dump(job))
            words, variables = [str(config)], {"FAKE_CORES": str(gmis)} if sharing else {}
        else:
            words, variables = ["--resume", str(run)], _cores_of(run)
        front = _FRONT_ON_SHARED_CORES if variables else _FRONT
        if variables:
            paths = filter(None, (str(_TESTS), os.environ.get("PYTHONPATH")))
            variables["PYTHONPATH"] = os.pathsep.join(paths)
        command = [sys.executable, "-c", front, "launch", *words]
        meter = _Meter(runs, settings, progress, run)
        if run is None or _state(run).get("state") != "finished":
            log = folder / "log"
            _run(on_cores(cores, command), folder / "out", log, timeout, meter.look, variables)
        measured = meter.result()
        return measured if run is None else replace(measured, cpu_s_per_1000_steps=None)


def _kept_run(folder: Path, job: dict[str, Any]) -> Path | None:
    """Returns the newest run in `folder` that has a checkpoint; JobError if its job is another."""
    manifests = sorted(folder.glob("runs/bench/*/checkpoints/iteration_*/manifest.json"))
    if not manifests:
        return None
    path = folder / "config.yaml"
    there, wanted = (_fields(text) for text in (path.read_text(), yaml.safe_dump(job)))
    changed = [key for key in there | wanted if there.get(key) != wanted.get(key)]
    if changed := sorted(set(changed) - set(_FREE)):
        raise JobError(
            f"{path} is of another job: it differs in {', '.join(changed)}. Keep this job in "
            f"another folder, or delete {folder}."
        )
    return manifests[-1].parents[2]


def _fields(text: str) -> dict[str, Any]:
    """Returns what a config has, by section and field."""
    return {
        f"{section}.{key}": value
        for section, fields in yaml.safe_load(text).items()
        for key, value in (fields if isinstance(fields, dict) else {"": fields}).items()
    }


def _cores_of(run: Path) -> dict[str, str]:
    """Returns the variables by which a run finds the cores that it began on, wherever it is now."""
    layout = json.loads((run / "layout.json").read_text())
    cores = [core for device in layout["topology"]["devices"] for core in device["cores"]]
    return {"FAKE_CORES": str(len(cores)), "FAKE_FIRST_CORE": str(min(cores))}


class _Meter:
    """Follows a run's metrics.jsonl and reads the CPU clock of its processes beside it.

    Without a `run` it is the next one that begins in `runs`.
    """

    def __init__(
        self,
        runs: Path,
        settings: Settings,
        progress: Callable[[int], None] | None,
        run: Path | None = None,
    ) -> None:
        self.runs, self.settings, self.progress = runs, settings, progress
        self.earlier = set(runs.glob(_METRICS))
        self._path = None if run is None else run / "metrics.jsonl"
        self._size = 0  # of the file at the last look
        self._sampled_at = 0.0
        self.samples: list[tuple[int, float]] = []  # steps taken, CPU seconds until then

    @property
    def path(self) -> Path | None:
        """Returns the run's metrics.jsonl, if it has begun."""
        if self._path is None:
            self._path = next(iter(set(self.runs.glob(_METRICS)) - self.earlier), None)
        return self._path

    def look(self, pid: int) -> None:
        """Takes a sample if the run has made progress.

        It does so after the warm-up, at the end, and between them at most twice a second, as
        reading every process's clock costs milliseconds.
        """
        if self.path is None or (size := self.path.stat().st_size) == self._size:
            return
        self._size, last, now = size, last_metrics(self.path), time.monotonic()
        count = last.get("iteration", 0)
        if count < max(1, self.settings.warmup):
            return
        if self.samples and count < self.settings.iterations and now - self._sampled_at < 0.5:
            return
        self._sampled_at = now
        self.samples.append((last["steps"], tree_cpu_s(pid)))
        if self.progress is not None:
            self.progress(last["steps"])

    def result(self) -> Job:
        """Returns what the finished run measured."""
        lines = [] if self.path is None else metrics_of(self.path.parent)
        if len(lines) < self.settings.iterations:
            target = self.settings.iterations
            raise JobError(f"the run wrote {len(lines)} iterations to metrics.jsonl, not {target}")
        warmup = self.settings.warmup
        start = lines[warmup - 1] if warmup else {"steps": 0, "time_s": 0.0}
        steps = lines[-1]["steps"] - start["steps"]
        seconds = lines[-1]["time_s"] - start["time_s"]
        simulate_s = sum(line.get("simulate_s", 0.0) for line in lines[warmup:])
        cpu = None
        if len(self.samples) > 1:
            (first_steps, first_cpu), (last_steps, last_cpu) = self.samples[0], self.samples[-1]
            if last_steps > first_steps:
                cpu = (last_cpu - first_cpu) / (last_steps - first_steps) * 1000
        return Job(
            steps_per_s=steps / seconds,
            cpu_s_per_1000_steps=cpu,
            seconds=seconds,
            steps=steps,
            curve=[
                (line["steps"], round(line["return_mean"], 3))
                for line in lines
                if line["return_mean"] is not None
            ],
            evaluation=_evaluation(_state(self.path.parent), self.settings.evaluate),
            simulate_steps_per_s=steps / simulate_s if simulate_s else None,
        )


def _state(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


def _evaluation(state: dict[str, Any], episodes: int) -> dict[str, Any] | None:
    """Returns what a run's run.json says of its last evaluation."""
    mean = state.get("eval_return")
    return None if mean is None else {"episodes": episodes, "mean": round(mean, 3)}


def _run(
    command: list[str],
    out: Path,
    log: Path,
    timeout: timedelta,
    look: Callable[[int], None],
    variables: Mapping[str, str] | None = None,
) -> None:
    """Runs a command to its end and calls `look` every 10 ms; no process of it is left running."""
    deadline = time.monotonic() + timeout.total_seconds()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(variables or {})}
    with open(out, "wb") as stdout, open(log, "wb") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment)
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise JobError(f"still running after {timeout}: {_name(command)}\n{_tail(log)}")
                if STOP.is_set():
                    raise JobError(f"stopped: {_name(command)}")
                look(process.pid)
                time.sleep(0.01)
        finally:
            end(process)
    if process.returncode:
        output = _tail(log) or _tail(out)
        raise JobError(f"exit code {process.returncode}: {_name(command)}\n{output}")


def _name(command: list[str]) -> str:
    scripts = [part for part in command if part.endswith((".py", ".yaml"))]
    return Path(scripts[-1]).name if scripts else command[-1]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:])
