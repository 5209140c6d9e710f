#!/usr/bin/env python3
"""Compares SAC, TD3 and DQN with Stable-Baselines3: whole jobs, steps of environments a second.

Claim: at one update a step, with the same batch and networks, one GMI of one core is 1.5 times as
fast as Stable-Baselines3 with one, and two GMIs of one core each, each with half of every batch,
are 2.5 times as fast as it is with two.

    <task>/one    one GMI of one core, against Stable-Baselines3 with one
    <task>/two    two GMIs, against Stable-Baselines3 with the threads of two

Run it on a machine that does nothing else; `--python` is an interpreter that has the peer:

    python bench/offpolicy.py --python .venv-peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jobs import on_cores
from modes import BENCH, Rates, in_turn, launched
from report import emit_pairs

from gmi_drl import runtime

# By task: algorithm, environment, hidden layers, batch, steps that are timed.
TASKS: Final[Mapping[str, tuple[str, str, Sequence[int], int, int]]] = {
    "halfcheetah_sac": ("sac", "HalfCheetah-v5", (256, 256), 256, 1_536),
    "halfcheetah_td3": ("td3", "HalfCheetah-v5", (256, 256), 256, 2_048),
    "cartpole_dqn": ("dqn", "CartPole-v1", (128, 128), 64, 6_144),
}
NUM_ENV: Final = 8
HORIZON: Final = 8
START: Final = 256  # steps before the first update


def ours(task: str, cores: Sequence[int]) -> Callable[[], Rates]:
    """Returns what runs a task once, in a GMI on each of `cores`."""
    name, env, net, batch, steps = TASKS[task]
    gmis, warmup = len(cores), START // (NUM_ENV * HORIZON) + 2
    algorithm: dict[str, Any] = {
        "name": name, "network": list(net), "activation": "relu", "horizon": HORIZON,
        "batch_size": batch // gmis, "replay_start": START // gmis, "replay_capacity": 100_000,
        "updates_per_row": float(gmis),  # each row of a GMI's own; together one for each step
    }  # fmt: skip
    algorithm |= {"epsilon_steps": START} if name == "dqn" else {"random_steps": START}
    config = {
        "version": 1,
        "run": {
            "total_steps": steps + warmup * NUM_ENV * HORIZON, "log_every": 1,
            "checkpoint_every": 0, "eval_episodes": 0,
        },
        "env": {"id": env, "num_env": NUM_ENV // gmis},
        "algorithm": algorithm,
        "hardware": {"backend": "cpu", "num_gpus": 1, "cores": list(cores)},
        "layout": {"template": "tcg_ex", "gmi_per_gpu": gmis},
    }  # fmt: skip
    return lambda: {"steps_per_s": launched(config, warmup)["training_samples_per_s"]}


def peer(python: str, task: str, cores: Sequence[int]) -> Callable[[], Rates]:
    """Returns what runs the same once in Stable-Baselines3, with a thread for each of `cores`."""
    name, env, net, batch, steps = TASKS[task]
    command = [
        python, str(BENCH / "peers" / "sb3_off_policy.py"), f"--algorithm={name}", f"--env={env}",
        f"--num-env={NUM_ENV}", f"--horizon={HORIZON}", "--net", *map(str, net),
        f"--batch={batch}", f"--start={START}", f"--steps={steps}", f"--threads={len(cores)}",
    ]  # fmt: skip

    def run() -> Rates:
        done = subprocess.run(
            on_cores(cores, command), capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            raise SystemExit(f"sb3_off_policy.py failed:\n{done.stderr[-2000:]}")
        rates: Rates = json.loads(done.stdout.splitlines()[-1])
        return rates

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    both = sorted(os.sched_getaffinity(0))[:2]
    for task in options.tasks:
        ways: dict[str, Callable[[], Rates]] = {}
        for word, cores in (("one", both[:1]), ("two", both)):
            ways[word] = ours(task, cores)
            ways[f"sb3 {word}"] = peer(options.python, task, cores)
        found = in_turn(ways, options.rounds)
        rates = {way: [one["steps_per_s"] for one in runs] for way, runs in found.items()}
        for word in ("one", "two"):
            emit_pairs(
                "offpolicy", f"{task}/{word}", "steps/s", rates[word], rates[f"sb3 {word}"],
                peer_name="Stable-Baselines3",
            )  # fmt: skip
    runtime.shutdown()


if __name__ == "__main__":
    main()
