"""Trains SAC, TD3 or DQN of Stable-Baselines3; prints one JSON line with its steps a second.

It samples so many steps of each environment, and then takes one update for each of these steps.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=("sac", "td3", "dqn"), required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-env", type=int, required=True)
    parser.add_argument("--horizon", type=int, required=True)
    parser.add_argument("--net", type=int, nargs="+", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--start", type=int, required=True, help="steps before the first update")
    parser.add_argument("--steps", type=int, required=True, help="that are timed, after these")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
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
