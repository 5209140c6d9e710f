"""Gives every peer's job its settings, its stopwatch, and the one JSON line it prints.

The scripts beside this file run under an interpreter that need not have gmi-drl, so nothing here
imports anything but the standard library.

Words: an *iteration* is `horizon` steps of each of `n_envs` environments and the update after it;
a *step* is one step of one environment.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Settings:
    """Settings of a job by PPO or A2C; the defaults are those of the throughput benchmark.

    `n_envs` is the total over all processes, `minibatch` is in samples, `net` is the hidden sizes.
    `trunk` says whether the policy and the value share the hidden layers.
    """

    env: str = "Ant-v5"
    method: str = "ppo"  # ppo | a2c, which is PPO with one epoch of one minibatch
    descent: str = "adam"  # adam | rmsprop, which is SB3's default for A2C
    steps: int = 20480  # timed steps; `warmup` iterations come before them
    warmup: int = 1  # iterations
    seed: int = 0
    vec: str = ""  # the library's way to run environments; empty: its first
    n_envs: int = 16
    horizon: int = 128
    minibatch: int = 512
    epochs: int = 5
    net: str = "256:128:64"
    trunk: str = "shared"  # shared | separate
    activation: str = "elu"  # elu | tanh | relu
    gamma: float = 0.99
    lam: float = 0.95
    learning_rate: float = 3e-4
    schedule: str = "constant"  # constant | linear (to zero)
    clip: float = 0.2
    clip_schedule: str = "constant"
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    max_grad_norm: float = 1.0
    init_log_std: float = 0.0
    sde: int = 0  # steps between new gSDE noise; 0: no gSDE
    normalize_observation: bool = True
    normalize_reward: bool = True
    threads: int = 1  # torch's
    evaluate: int = 0  # episodes of the mean action after training
    check: bool = False  # only import what the job needs, then stop

    @property
    def hidden(self) -> list[int]:
        """Returns the hidden sizes, first layer first."""
        return [int(size) for size in self.net.split(":") if size]

    @property
    def batch(self) -> int:
        """Returns the samples of one iteration."""
        return self.n_envs * self.horizon

    @property
    def iterations(self) -> int:
        """Returns all iterations: the warm-up and enough for `steps` more."""
        return self.warmup + max(1, -(-self.steps // self.batch))

    def arguments(self) -> list[str]:
        """Returns the command-line options that give these settings."""
        flags = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                flags.append(f"--{item.name.replace('_', '-')}={value}")
        return flags


def asked() -> SimpleNamespace:
    """Returns the settings that `ask_peer` has given this script."""
    return SimpleNamespace(**json.loads(sys.argv[1]))


def parse(vecs: tuple[str, ...], what: str | None) -> Settings:
    """Returns the command line's settings; `vecs` are this library's ways to run environments."""
    parser = argparse.ArgumentParser(description=what)
    hints = get_type_hints(Settings)
    for item in fields(Settings):
        kind = hints[item.name]
        parser.add_argument(
            f"--{item.name.replace('_', '-')}",
            type=_flag if kind is bool else kind,
            default=item.default,
            **({"nargs": "?", "const": True} if kind is bool else {}),
        )
    values = vars(parser.parse_args())
    values["vec"] = values["vec"] or vecs[0]
    if values["vec"] not in vecs:
        parser.error(f"--vec={values['vec']}: this library runs {', '.join(vecs)}. Choose one.")
    return Settings(**values)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def tree_cpu_s(root_pid: int | None = None) -> float:
    """Returns the CPU seconds of a process, its live descendants and those they reaped."""
    root = os.getpid() if root_pid is None else root_pid
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # ended meanwhile
            continue
        stat_fields = stat[stat.rindex(")") + 2 :].split()  # from field 3, see proc(5)
        pid = int(entry.name)
        parents[pid] = int(stat_fields[1])
        used[pid] = sum(int(ticks) for ticks in stat_fields[11:15]) / _TICKS_PER_S
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    total, open_pids = 0.0, [root]
    while open_pids:
        pid = open_pids.pop()
        total += used.get(pid, 0.0)
        open_pids += children.get(pid, [])
    return total


@dataclass
class Stopwatch:
    """Times the training loop after its warm-up and keeps the return curve.

    Call `iteration(steps)` whenever an iteration starts, with the steps taken so far, `episode`
    for every episode that ends, and `stop(steps)` after the last update.
    """

    settings: Settings
    curve: list[tuple[int, float]] = field(default_factory=list)
    _returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    _started: int = 0
    _from: tuple[float, float, int] = (0.0, 0.0, 0)  # wall s, CPU s, steps
    _to: tuple[float, float, int] = (0.0, 0.0, 0)

    def iteration(self, steps: int) -> None:
        """Notes the start of an iteration; the first after the warm-up starts the clock."""
        if self._started == self.settings.warmup:
            self._from = (time.perf_counter(), tree_cpu_s(), steps)
        self._started += 1
        self._point(steps)

    def episode(self, episode_return: float) -> None:
        """Notes an episode that ended with this sum of unscaled rewards."""
        self._returns.append(episode_return)

    def stop(self, steps: int) -> None:
        """Stops the clock after the last update, before any helper process is stopped."""
        self._to = (time.perf_counter(), tree_cpu_s(), steps)
        self._point(steps)

    def _point(self, steps: int) -> None:
        if self._returns and (not self.curve or self.curve[-1][0] < steps):
            self.curve.append((steps, round(statistics.fmean(self._returns), 3)))

    def print_result(self, system: str, *packages: str, **extra: Any) -> None:
        """Prints the job's one line on standard output, with the versions of these packages."""
        wall, cpu, steps = (b - a for a, b in zip(self._from, self._to, strict=True))
        line = {
            "system": system,
            "env": self.settings.env,
            "vec": self.settings.vec,
            "seed": self.settings.seed,
            "steps": steps,
            "seconds": round(wall, 4),
            "steps_per_s": round(steps / wall, 2),
            "cpu_seconds": round(cpu, 2),
            "cpu_seconds_per_1000_steps": round(cpu / steps * 1000, 4),
            "curve": self.curve,
            "versions": {name: importlib.metadata.version(name) for name in packages},
            "settings": asdict(self.settings),
            **extra,
        }
        print(json.dumps(line), flush=True)


def vector_env(settings: Settings, count: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Returns environments of EnvPool or Gymnasium, their first observation, and both spaces."""
    if settings.vec == "envpool":
        import envpool

        threads = min(count, len(os.sched_getaffinity(0)))
        env = envpool.make(
            settings.env, env_type="gymnasium", num_envs=count, num_threads=threads, seed=seed
        )
        return env, env.reset()[0], env.observation_space, env.action_space
    import gymnasium

    env = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make(settings.env)] * count,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    first, _ = env.reset(seed=seed)
    return env, first, env.single_observation_space, env.single_action_space


def evaluation(returns: list[float]) -> dict[str, Any]:
    """Returns the summary of evaluation episodes, as every result records it."""
    return {
        "episodes": len(returns),
        "mean": round(statistics.fmean(returns), 3),
        "std": round(statistics.pstdev(returns), 3),
        "returns": [round(value, 3) for value in returns],
    }


def limit_threads(threads: int) -> None:
    """Limits threads; it must run before torch or numpy is imported, as OpenMP reads this once."""
    if "torch" in sys.modules or "numpy" in sys.modules:
        raise RuntimeError("limit_threads came after torch or numpy; call it first")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
