#!/usr/bin/env python3
"""Measures environment steps/s of our batches beside bare physics and Gymnasium's vectors.

Claim: a batch of MuJoCo environments costs little more than its physics, and is several times as
fast as Gymnasium's vectors on the same cores. Everything runs in turn, round after round, in one
process; a ratio is the median over rounds of the ratio within a round.

Rows, for ant, humanoid and halfcheetah:
    <task>/physics            `mujoco.rollout` with as many threads, from the very states, warm
                              starts and controls of the batch's steps just before: equal work
    <task>/gymnasium_sync     `gymnasium.vector.SyncVectorEnv`
    <task>/gymnasium_async    `gymnasium.vector.AsyncVectorEnv`, one process each of 8
    <task>/adapter_sync       our gymnasium adapter over the same vector: what its tensors cost
and cartpole/gymnasium_vector: our tensor CartPole beside Gymnasium's NumPy one, 1024 each.
CPU seconds per 1,000 steps stand beside, as they hardly change on a loaded machine.

    bench/envs.py --threads 2 --rounds 5
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import mujoco
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from mujoco import rollout
from report import emit_pairs, parser

from gmi_drl.roles.envs import make_env

TASKS = {"ant": "Ant-v5", "humanoid": "Humanoid-v5", "halfcheetah": "HalfCheetah-v5"}
ASYNC_WORKERS = 8
_STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS


@dataclass
class Sample:
    """Holds one timed stretch of steps."""

    steps: int
    wall_s: float
    cpu_s: float

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.wall_s


class Stopwatch:
    """Adds up the time inside `with` blocks; CPU time of waited-for children is not in it."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def __enter__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter() - self._wall
        self.cpu_s += time.process_time() - self._cpu

    def sample(self, steps: int) -> Sample:
        return Sample(steps, self.wall_s, self.cpu_s)


class Batch:
    """Steps our MuJoCo batch, and repeats its work by bare physics."""

    def __init__(self, env_id: str, num_env: int, threads: int) -> None:
        self.env: Any = make_env(env_id, num_env, adapter="mujoco", threads=threads)
        self.model, self.num_env = self.env._model, num_env
        self.skip = self.env._task.options.frame_skip
        self.datas = [mujoco.MjData(self.model) for _ in range(threads)]
        self.pool = rollout.Rollout(nthread=threads if threads > 1 else 0)
        self.done: list[tuple[Any, Any, Any]] = []  # state, warm start, controls of each step
        self.env.reset()

    def step(self, actions: np.ndarray) -> Sample:
        """Steps with actions [T, N, act]; what bare physics needs is kept outside the timing."""
        watch, tensors = Stopwatch(), torch.from_numpy(actions).float()
        self.done.clear()
        for action, tensor in zip(actions, tensors, strict=True):
            state = np.empty((self.num_env, mujoco.mj_stateSize(self.model, _STATE)))
            warm = np.stack([data.qacc_warmstart for data in self.env._datas])
            for data, row in zip(self.env._datas, state, strict=True):
                mujoco.mj_getState(self.model, data, row, _STATE)
            self.done.append((state, warm, np.repeat(action[:, None], self.skip, axis=1)))
            with watch:
                self.env.step(tensor)
        return watch.sample(self.num_env * len(actions))

    def physics(self, actions: np.ndarray) -> Sample:
        """Repeats the steps that `step` did last, through `mujoco.rollout`."""
        watch = Stopwatch()
        with watch:
            for state, warm, controls in self.done:
                self.pool.rollout(self.model, self.datas, state, controls, initial_warmstart=warm)
        return watch.sample(self.num_env * len(self.done))

    def close(self) -> None:
        self.pool.close()
        self.env.close()


def stepper(step: Callable[[Any], Any], convert: Callable[[Any], Any], num_env: int) -> Any:
    """Times `step` over actions [T, N, ...] (the first `num_env` columns of them)."""

    def run(actions: np.ndarray) -> Sample:
        converted = [convert(a[:num_env]) for a in actions[: max(1, len(actions) // 4)]]
        watch = Stopwatch()
        with watch:
            for action in converted:
                step(action)
        return watch.sample(num_env * len(converted))

    return run


def mujoco_contestants(env_id: str, num_env: int, threads: int) -> tuple[dict[str, Any], list[Any]]:
    """Returns the contestants' functions by name, ours first, and the environments to close."""
    batch = Batch(env_id, num_env, threads)
    makers = [lambda: gymnasium.make(env_id)] * num_env
    mode = {"autoreset_mode": AutoresetMode.SAME_STEP}
    sync = SyncVectorEnv(makers, **mode)
    parallel = AsyncVectorEnv(makers[:ASYNC_WORKERS], context="spawn", **mode)
    adapter = make_env(env_id, num_env, adapter="gymnasium")
    for env in (sync, parallel, adapter):
        env.reset()
    single = lambda a: a.astype(np.float32)  # noqa: E731
    return {
        "ours": batch.step,
        "physics": batch.physics,
        "gymnasium_sync": stepper(sync.step, single, num_env),
        "gymnasium_async": stepper(parallel.step, single, min(num_env, ASYNC_WORKERS)),
        "adapter_sync": stepper(adapter.step, lambda a: torch.from_numpy(single(a)), num_env),
    }, [batch, sync, parallel, adapter]


def cartpole_contestants(num_env: int) -> tuple[dict[str, Any], list[Any]]:
    ours = make_env("CartPole-v1", num_env)
    peer: VectorEnv[Any, Any, Any] = gymnasium.make_vec(
        "CartPole-v1", num_envs=num_env, vectorization_mode="vector_entry_point"
    )
    ours.reset()
    peer.reset()
    return {
        "ours": stepper(ours.step, torch.from_numpy, num_env),
        "gymnasium_vector": stepper(peer.step, np.asarray, num_env),
    }, [ours, peer]


def measure(
    contestants: dict[str, Any], actions: Callable[[int], np.ndarray], rounds: int
) -> dict[str, list[Sample]]:
    """Takes `rounds` samples of each contestant in turn, after one round that does not count."""
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        drawn = actions(number)
        for name, run in contestants.items():
            sample = run(drawn)
            if number:
                samples[name].append(sample)
    return samples


def report(task: str, samples: dict[str, list[Sample]], **about: Any) -> None:
    """Emits a row for each peer, and prints a line for people beside it."""
    for name in samples:
        if name == "ours":
            continue
        # The adapter is ours too; its peer is the vector beneath it.
        pair = (name, "gymnasium_sync") if name == "adapter_sync" else ("ours", name)
        ours, peer_samples = (samples[key] for key in pair)
        speeds, peers = ([s.steps_per_s for s in group] for group in (ours, peer_samples))
        cpu = [statistics.median(1000 * s.cpu_s / s.steps for s in g) for g in (ours, peer_samples)]
        in_workers = name == "gymnasium_async"  # this process's clock does not have their CPU time
        emit_pairs(
            "envs", f"{task}/{name}", "steps/s", speeds, peers,
            cpu_s_per_1000_steps=round(cpu[0], 5),
            peer_cpu_s_per_1000_steps=None if in_workers else round(cpu[1], 5), **about,
        )  # fmt: skip


def main() -> None:
    options_of = parser(__doc__, num_env=64, threads=1, rounds=5)
    options_of.add_argument("--tasks", default=",".join([*TASKS, "cartpole"]))
    options_of.add_argument("--steps", type=int, default=100, help="of each one in a round")
    options = options_of.parse_args()
    torch.set_num_threads(options.threads)
    for task in options.tasks.split(","):
        if task == "cartpole":
            num_env, high = 1024, None
            contestants, opened = cartpole_contestants(num_env)
            shape = (options.steps * 10, num_env)
        else:
            env_id, num_env = TASKS[task], options.num_env
            contestants, opened = mujoco_contestants(env_id, num_env, options.threads)
            high = opened[0].env.action_space.high
            shape = (options.steps, num_env, len(high))

        def actions(number: int, shape: Any = shape, high: Any = high) -> np.ndarray:
            rng = np.random.default_rng(number)
            return rng.integers(0, 2, shape) if high is None else rng.uniform(-1, 1, shape) * high

        try:
            samples = measure(contestants, actions, options.rounds)
        finally:
            for env in opened:
                env.close()
        report(
            task, samples, num_env=num_env, threads=options.threads,
            versions={"mujoco": mujoco.__version__, "gymnasium": gymnasium.__version__},
            max_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        )  # fmt: skip


if __name__ == "__main__":
    main()
