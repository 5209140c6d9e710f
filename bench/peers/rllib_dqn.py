#!/usr/bin/env python3
"""Trains RLlib's DQN on prioritised transitions as one of our configs says, timed.

Prints one JSON line: environment steps a second, after the first updates; the updates of a step,
as they were counted; and the parameters of the network that learns. `workers` env runners sample
in processes of their own, each with the config's `num_env`; the learner is in the driver, as is
RLlib's default. They share all cores that the process may use.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from _job import asked

_WARMUP = 4  # iterations


def algorithm(config: dict[str, Any], workers: int) -> Any:
    """Returns RLlib's DQN, set up."""
    import ray
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(
        address="local", num_cpus=workers + 1, include_dashboard=False, logging_level=logging.ERROR
    )  # fmt: skip
    env, settings = config["env"], config["algorithm"]
    steps = env["num_env"] * settings["horizon"] * workers  # of a round
    updates = steps * settings["updates_per_row"]
    # RLlib counts the driver among the samplers, although it does not sample.
    intensity = updates * settings["batch_size"] / (steps * (workers + 1) / workers)
    set_up = (
        DQNConfig()
        .environment(env["id"])
        .env_runners(
            num_env_runners=workers, num_envs_per_env_runner=env["num_env"],
            rollout_fragment_length=settings["horizon"],
        )
        .learners(num_learners=0)
        .reporting(min_sample_timesteps_per_iteration=settings["replay_start"])
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=settings["network"], fcnet_activation=settings["activation"],
                head_fcnet_hiddens=[],
            )
        )
        .training(
            train_batch_size_per_learner=settings["batch_size"], gamma=settings["gamma"],
            lr=settings["learning_rate"], grad_clip=settings["max_grad_norm"],
            n_step=settings["n_step"], double_q=True, dueling=False, training_intensity=intensity,
            target_network_update_freq=settings["target_every"],
            num_steps_sampled_before_learning_starts=settings["replay_start"],
            replay_buffer_config={
                "type": "PrioritizedEpisodeReplayBuffer", "capacity": settings["replay_capacity"],
                "alpha": 0.6, "beta": 0.4,
            },
        )
    )  # fmt: skip
    return set_up.build_algo()


def _counts(result: dict[str, Any]) -> tuple[int, int]:
    """Returns the steps that were sampled until a result, and the rows that were trained on."""
    sampled = result["env_runners"]["num_env_steps_sampled_lifetime"]
    trained = result["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"]
    return int(sampled), int(trained)


def main() -> None:
    """Trains for some seconds, and prints the rates."""
    options = asked()
    agent = algorithm(options.config, options.workers)
    for _ in range(_WARMUP):
        counts_before = _counts(agent.train())
    began, counts = time.perf_counter(), counts_before
    while time.perf_counter() - began < options.seconds:
        counts = _counts(agent.train())
    elapsed = time.perf_counter() - began
    network = agent.learner_group._learner.module["default_policy"]
    parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
    agent.stop()
    steps, rows = counts[0] - counts_before[0], counts[1] - counts_before[1]
    rates = {
        "steps_per_s": steps / elapsed,
        "updates_per_step": rows / options.config["algorithm"]["batch_size"] / steps,
        "parameters": parameters,
    }
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
