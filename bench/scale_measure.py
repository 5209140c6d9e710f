"""Measures what the model of scale is compared with or based on, and no other benchmark measures.

`waits`: how long GMIs wait for the slowest of them. Each of k processes sleeps as long as a
roll-out takes and then, for each gradient step, as long as that takes, both lognormal, and reduces
a gradient of 224 kB by `mpr` with the others after each step. One process alone measures by how
much sleeps last too long.

`core_steps`: the processor time of a step of each benchmark's environment on one core, by MuJoCo in
C (BallBalance: tensor code). Hardware files take their ratios to Ant's where a GPU's are not known.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import numpy as np

from gmi_drl import runtime
from gmi_drl.comm import create_group

COUNTS: Final = (1, 2, 4, 8)
DEVIATIONS: Final = (0.05, 0.2)
ROLLOUT_S: Final = 0.040
STEP_S: Final = 0.010
STEPS: Final = 4
NBYTES: Final = 224_000


class Sleeper:
    """A process that sleeps in place of computing, and reduces."""

    def __init__(self, group: Any, rank: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._group, self._rank = group.join(rank), rank

    def oversleeps_s(self, times: int) -> float:
        """Returns the median seconds by which a sleep of one process alone lasts too long."""
        oversleeps = []
        for _ in range(times):
            begin = time.monotonic()
            time.sleep(STEP_S)
            oversleeps.append(time.monotonic() - begin - STEP_S)
        return statistics.median(oversleeps)

    def run(self, deviation: float, iterations: int) -> list[float]:
        """Returns the seconds of each iteration."""
        rng = np.random.default_rng(1000 * self._rank + round(1000 * deviation))
        bucket = self._group.bucket(f"gradient {deviation}", NBYTES // 4)
        sigma = float(np.sqrt(np.log1p(deviation**2)))
        scales = np.exp(sigma * rng.standard_normal((iterations, 1 + STEPS)) - sigma**2 / 2)
        self._group.barrier()
        ends = [time.monotonic()]
        for rollout, *steps in scales:
            time.sleep(ROLLOUT_S * rollout)
            for step in steps:
                time.sleep(STEP_S * step)
                bucket.reduce("mean")
            ends.append(time.monotonic())
        return [float(duration) for duration in np.diff(ends)]


TASKS: Final = {
    "Ant-v5": "mujoco", "Barkour-v0": "mujoco", "BallBalance-v0": "torch",
    "Humanoid-v5": "mujoco", "ShadowHand-v0": "mujoco",
}  # fmt: skip
NUM_ENV: Final = 64


def core_steps(rounds: int = 5, steps: int = 8) -> dict[str, float]:
    """Returns the median CPU microseconds of an environment's step by task, tasks in turn."""
    import torch

    from gmi_drl.roles.envs import make_env

    torch.set_num_threads(1)
    envs = {task: make_env(task, NUM_ENV, adapter=adapter) for task, adapter in TASKS.items()}
    for env in envs.values():
        env.reset()
    costs: dict[str, list[float]] = {task: [] for task in envs}
    for _ in range(rounds):
        for task, env in envs.items():
            actions = 2 * torch.rand(NUM_ENV, *env.action_space.shape) - 1
            begin = time.process_time()
            for _ in range(steps):
                env.step(actions)
            costs[task].append((time.process_time() - begin) / steps / NUM_ENV)
    return {task: round(1e6 * statistics.median(seconds), 2) for task, seconds in costs.items()}


def waits(iterations: int) -> list[dict[str, float]]:
    """Returns a row for each number of processes and each deviation."""
    rows = []
    runtime.init(["torch"])
    try:
        sleeper = runtime.remote(Sleeper)
        for count in COUNTS:
            group = create_group([f"rank {rank}" for rank in range(count)])
            actors = [sleeper.options(num_cpus=0).remote(group, rank) for rank in range(count)]
            try:
                late_s = runtime.get(actors[0].oversleeps_s.remote(40), timeout=60)
                for deviation in DEVIATIONS:
                    answers = runtime.get(
                        [actor.run.remote(deviation, iterations) for actor in actors], timeout=120
                    )
                    rows.append({
                        "processes": count, "deviation": deviation, "iterations": iterations,
                        "oversleep_us": round(1e6 * late_s, 1),
                        "iteration_ms": round(1e3 * statistics.mean(answers[0]), 4),
                    })  # fmt: skip
            finally:
                runtime.kill(actors)
    finally:
        runtime.shutdown()
    return rows
