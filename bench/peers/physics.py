"""Measures bare MuJoCo physics as a batch: no policy, no observation, no reward.

The limit that a training job on these cores can come near to: `mujoco.rollout` with one thread a
core, random controls held for the task's frame skip, from the task's own initial states. A *step*
is one step of one environment (frame skip physics steps), as in the jobs beside this file.
"""

from __future__ import annotations

import os
from typing import Any

from _job import Settings, Stopwatch, parse

SETTINGS = parse(("rollout",), __doc__)

import gymnasium  # noqa: E402
import mujoco  # noqa: E402
import numpy as np  # noqa: E402
from mujoco import rollout  # noqa: E402

_STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS


def initial_states(env: Any, count: int) -> np.ndarray:
    """Returns [count, state] full physics states after resets with different seeds."""
    model, data = env.unwrapped.model, env.unwrapped.data
    states = np.empty((count, mujoco.mj_stateSize(model, _STATE)))
    for index in range(count):
        env.reset(seed=index)
        mujoco.mj_getState(model, data, states[index], _STATE)
    return states


def main(settings: Settings) -> None:
    """Rolls out `horizon` steps of `n_envs` environments again and again."""
    env = gymnasium.make(settings.env).unwrapped
    model, skip = env.model, env.frame_skip
    states = initial_states(env, settings.n_envs)
    low, high = model.actuator_ctrlrange.T
    generator = np.random.default_rng(settings.seed)
    shape = (settings.n_envs, settings.horizon, model.nu)
    controls = np.repeat(generator.uniform(low, high, shape), skip, axis=1)
    threads = len(os.sched_getaffinity(0))
    datas = [mujoco.MjData(model) for _ in range(threads)]
    stopwatch = Stopwatch(settings)
    with rollout.Rollout(nthread=threads) as pool:
        for iteration in range(settings.iterations):
            stopwatch.iteration(iteration * settings.batch)
            pool.rollout(model, datas, states, controls)
        stopwatch.stop(settings.iterations * settings.batch)
    stopwatch.print_result("physics", "mujoco")


if __name__ == "__main__" and not SETTINGS.check:
    main(SETTINGS)
