"""Trains sb3-contrib's RecurrentPPO on CartPole without velocities; prints one JSON line.

With the settings of examples/lstm_cartpole.yaml: one LSTM that policy and value share, and no
hidden layer before it.
"""

from __future__ import annotations

import json
import time

import gymnasium
import numpy as np
import torch
from _job import asked
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.vec_env import DummyVecEnv


class Hidden(gymnasium.ObservationWrapper):
    """Shows only position and angle."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        low, high = (
            bound[[0, 2]] for bound in (env.observation_space.low, env.observation_space.high)
        )
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


def main() -> None:
    options = asked()
    torch.set_num_threads(options.threads)
    env = DummyVecEnv([lambda: Hidden(gymnasium.make("CartPole-v1"))] * 8)
    agent = RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=32, batch_size=256, n_epochs=20, gamma=0.98, gae_lambda=0.8,
        learning_rate=1e-3, seed=0, device="cpu",
        policy_kwargs={
            "lstm_hidden_size": 64, "shared_lstm": True, "enable_critic_lstm": False,
            "net_arch": {"pi": [], "vf": []},
        },
    )  # fmt: skip
    agent.learn(2 * 256)  # warms up
    begun = time.perf_counter()
    agent.learn(options.steps)
    print(json.dumps({"steps_per_s": options.steps / (time.perf_counter() - begun)}))


if __name__ == "__main__":
    main()
