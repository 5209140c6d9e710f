#!/usr/bin/env python3
"""Trains RLlib's PPO in a multi-agent environment as one of our configs says, timed.

Prints {"steps_per_s": ...}: environment steps a second, from the end of the first iteration on.
The network, the steps of an update, its minibatches and epochs are those of the config; agents
share a policy. There are as many env runners as cores, each with the config's `num_env`, and the
learner is in the driver, as is RLlib's default.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import time
from typing import Any

from _job import asked


def algorithm(config: dict[str, Any]) -> Any:
    """Returns RLlib's PPO, set up."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    cores = len(os.sched_getaffinity(0))
    ray.init(
        address="local", num_cpus=cores, include_dashboard=False, logging_level=logging.ERROR
    )  # fmt: skip
    env, settings = config["env"], config["algorithm"]
    make = importlib.import_module(env["id"]).parallel_env
    register_env("peer", lambda _: ParallelPettingZooEnv(make(**env["options"])))
    environment = make(**env["options"])
    agents = len(environment.possible_agents)
    environment.close()
    steps = env["num_env"] * settings["horizon"] * cores * agents
    set_up = (
        PPOConfig()
        .environment("peer")
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent, *_, **__: "shared")
        .env_runners(
            num_env_runners=cores, num_envs_per_env_runner=env["num_env"],
            rollout_fragment_length=settings["horizon"], num_cpus_per_env_runner=0.5,
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=settings["network"], fcnet_activation=settings["activation"]
            )
        )
        .training(
            train_batch_size_per_learner=steps, minibatch_size=steps // settings["minibatches"],
            num_epochs=settings["epochs"], gamma=settings["gamma"], lr=settings["learning_rate"],
            entropy_coeff=settings["entropy_coef"],
        )
    )  # fmt: skip
    return set_up.build_algo()


def _steps(result: dict[str, Any]) -> int:
    """Returns the environment steps that were sampled until a result."""
    return int(result["env_runners"]["num_env_steps_sampled_lifetime"])


def main() -> None:
    """Trains for some seconds, and prints the rate."""
    options = asked()
    built = algorithm(options.config)
    steps_before = _steps(built.train())
    began, steps = time.perf_counter(), steps_before
    while time.perf_counter() - began < options.seconds:
        steps = _steps(built.train())
    elapsed = time.perf_counter() - began
    built.stop()
    print(json.dumps({"steps_per_s": (steps - steps_before) / elapsed}))


if __name__ == "__main__":
    main()
