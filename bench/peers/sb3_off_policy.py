"""Trains SAC, TD3 or DQN of Stable-Baselines3; prints one JSON line with its steps a second.

It samples `horizon` steps of each environment, and then takes one update for each of these steps.
`steps` are timed, after `start` before the first update.
"""

from __future__ import annotations

import json
import time

import torch
from _job import asked
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    options = asked()
    torch.set_num_threads(options.threads)
    kind = {"sac": SAC, "td3": TD3, "dqn": DQN}[options.algorithm]
    env = make_vec_env(options.env, n_envs=options.num_env, seed=0)
    extra = {"target_update_interval": 128, "exploration_fraction": 0.1} if kind is DQN else {}
    agent = kind(
        "MlpPolicy", env, buffer_size=100_000, learning_starts=options.start,
        batch_size=options.batch, train_freq=options.horizon, gradient_steps=-1, seed=0,
        device="cpu", policy_kwargs={"net_arch": options.net}, **extra,
    )  # fmt: skip
    round_steps = options.num_env * options.horizon
    agent.learn(options.start + 2 * round_steps)  # warms up
    begun, steps_before = time.perf_counter(), agent.num_timesteps
    updates = agent._n_updates
    agent.learn(options.steps, reset_num_timesteps=False)
    seconds, steps = time.perf_counter() - begun, agent.num_timesteps - steps_before
    rates = {
        "steps_per_s": steps / seconds,
        "updates_per_step": (agent._n_updates - updates) / steps,
    }
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
