#!/usr/bin/env python3
"""Compares SAC, TD3, DQN and Ape-X with peers: whole jobs, steps of environments a second.

Claim: at one update a step, with the same batch and networks, one GMI of one core is 1.5 times as
fast as Stable-Baselines3 with one, and two GMIs of one core each, each with half of every batch,
are 2.5 times as fast as it is with two.

    <task>/one    one GMI of one core, against Stable-Baselines3 with one
    <task>/two    two GMIs, against Stable-Baselines3 with the threads of two
    <task>/half   two GMIs, against twice what one of them does by itself: half of every batch, half
                  of the environments, nothing to reduce, and nobody on the other core
    <task>/at_most    that, against one GMI of one core: the most that two can gain
    <task>/bf16   one GMI of one core with `precision: bf16`, against the same in fp32 (SAC and TD3)
    <task>/apex   an agent and a trainer apart, each with a core, against RLlib's DQN with an env
                  runner beside its learner on the same two cores: prioritised, three steps, an
                  update for every four steps on both sides (`peer_updates_per_step`)
    <task>/to_return    seconds of such an agent and trainer until the mean return of the last
                  episodes is 200, against our DQN in one GMI on one of the cores, seed by seed

Run it on a machine that does nothing else; `--python` is an interpreter that has the peers:

    python bench/offpolicy.py --python .venv-peers/bin/python
    python bench/offpolicy.py --tasks lunarlander_dqn --rounds 3 --to-return 2
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from modes import Rates, ask_peer, column, in_turn, launched, lines_of
from report import emit_pairs, parser, say

from gmi_drl import runtime

# By task: algorithm, environment, hidden layers, batch, steps that are timed.
TASKS: Final[Mapping[str, tuple[str, str, Sequence[int], int, int]]] = {
    "halfcheetah_sac": ("sac", "HalfCheetah-v5", (256, 256), 256, 1_536),
    "halfcheetah_td3": ("td3", "HalfCheetah-v5", (256, 256), 256, 2_048),
    "cartpole_dqn": ("dqn", "CartPole-v1", (128, 128), 64, 6_144),
}
APEX: Final = "lunarlander_dqn"
ROWS: Final = ("one", "two", "half", "bf16")
NUM_ENV: Final = 8
HORIZON: Final = 8
START: Final = 256  # steps before the first update
APEX_STEPS: Final = 20_480  # that are timed
TO_RETURN: Final = 200.0
APEX_WARMUP: Final = 32  # segments, four times the steps before the first update


def ours(
    task: str, cores: Sequence[int], gmis: int | None = None, **changes: Any
) -> Callable[[], Rates]:
    """Returns a function that runs a task, a GMI on each core.

    `gmis`: how many share the task, if these are not all; then steps/s are of all. `changes` are of
    its algorithm.
    """
    name, env, net, batch, steps = TASKS[task]
    gmis, warmup = gmis or len(cores), START // (NUM_ENV * HORIZON) + 2
    share = len(cores) / gmis
    algorithm: dict[str, Any] = {
        "name": name, "network": list(net), "activation": "relu", "horizon": HORIZON,
        "batch_size": batch // gmis, "replay_start": START // gmis, "replay_capacity": 100_000,
        "updates_per_row": float(gmis),  # of a GMI's own rows: one for each step of all
        **changes,
    }  # fmt: skip
    algorithm |= {"epsilon_steps": START} if name == "dqn" else {"random_steps": START}
    config = {
        "version": 1,
        "run": {
            "total_steps": int(share * (steps + warmup * NUM_ENV * HORIZON)), "log_every": 1,
            "checkpoint_every": 0, "eval_episodes": 0,
        },
        "env": {"id": env, "num_env": NUM_ENV // gmis},
        "algorithm": algorithm,
        "hardware": {"backend": "cpu", "num_gpus": 1, "cores": list(cores)},
        "layout": {"template": "tcg_ex", "gmi_per_gpu": len(cores)},
    }  # fmt: skip
    return lambda: {"steps_per_s": launched(config, warmup)["steps_per_s"] / share}


def peer(python: str, task: str, cores: Sequence[int]) -> Callable[[], Rates]:
    """Returns a function that runs the same in Stable-Baselines3, a thread for each of `cores`."""
    name, env, net, batch, steps = TASKS[task]
    return partial(
        ask_peer, "sb3_off_policy.py", python=python, cores=cores, algorithm=name, env=env,
        num_env=NUM_ENV, horizon=HORIZON, net=net, batch=batch, start=START, steps=steps,
        threads=len(cores),
    )  # fmt: skip


def measure(python: str, task: str, rows: Sequence[str], rounds: int) -> None:
    """Measures these rows of a task in turn."""
    two_cores = sorted(os.sched_getaffinity(0))[:2]
    one_core, pairs = two_cores[:1], {}
    ways: dict[str, Callable[[], Rates]] = {}
    for row, cores in (("one", one_core), ("two", two_cores)):
        if row in rows:
            ways[row], ways[f"sb3 {row}"] = ours(task, cores), peer(python, task, cores)
            pairs[row] = row, f"sb3 {row}", "Stable-Baselines3"
    if "half" in rows:
        ways["two"], ways["half"] = ours(task, two_cores), ours(task, one_core, gmis=2)
        ways["one"] = ours(task, one_core)
        pairs["half"] = "two", "half", "twice one of the two by itself"
        pairs["at_most"] = "half", "one", "one GMI of one core"
    if "bf16" in rows and TASKS[task][0] != "dqn":
        ways["one"], ways["bf16"] = ours(task, one_core), ours(task, one_core, precision="bf16")
        pairs["bf16"] = "bf16", "one", "fp32"
    rates = column(in_turn(ways, rounds), "steps_per_s")
    for row, (way, peer_way, name) in pairs.items():
        emit_pairs(
            "offpolicy", f"{task}/{row}", "steps/s", rates[way], rates[peer_way], peer_name=name
        )


def apex_config() -> dict[str, Any]:
    """Returns the config of row apex, examples/apex_lunarlander.yaml, which both sides read."""
    round_steps = NUM_ENV * HORIZON
    return {
        "version": 1,
        "mode": "async",
        "run": {
            "total_steps": APEX_STEPS + APEX_WARMUP * round_steps, "checkpoint_every": 0,
            "eval_episodes": 0,
        },
        "env": {"id": "LunarLander-v3", "num_env": NUM_ENV},
        "algorithm": {
            "name": "dqn", "network": [256, 256], "activation": "relu", "horizon": HORIZON,
            "gamma": 0.99, "learning_rate": 6.3e-4, "max_grad_norm": 10.0, "batch_size": 128,
            "replay_capacity": 100_000, "replay_start": 512, "updates_per_row": 0.25,
            "target_every": 250, "n_step": 3, "sampler": "prioritized",
            "normalize_observation": False,
        },
        "hardware": {"backend": "cpu", "num_gpus": 2},
    }  # fmt: skip


def seconds_to_return(way: str, seed: int) -> Rates:
    """Trains until the return is reached; returns the seconds of training and the steps."""
    config = apex_config()
    config["run"] |= {"total_steps": 300_000, "seed": seed, "target_return": TO_RETURN}
    config["algorithm"] |= {
        "replay_start": 2_000, "reward_scale": 0.1, "schedule": "linear", "epsilon": 0.02,
        "epsilon_steps": 40_000,
    }  # fmt: skip
    if way == "dqn":
        core = min(os.sched_getaffinity(0))
        config |= {
            "mode": "sync", "hardware": {"backend": "cpu", "num_gpus": 1, "cores": [core]},
            "layout": {"template": "tcg_ex"},
        }  # fmt: skip
    line = lines_of(config)[-1]
    return {name: line[name] for name in ("time_s", "steps", "return_mean")}


def measure_to_return(seeds: int) -> None:
    """Measures row to_return; a run that misses the return counts with all its seconds."""
    results: dict[str, list[Rates]] = {"apex": [], "dqn": []}
    for seed in range(seeds):
        for way, runs in results.items():
            runs += [seconds_to_return(way, seed)]
            say(f"seed {seed}  {way}: {runs[-1]}")
    steps, returns = column(results, "steps"), column(results, "return_mean")
    emit_pairs(
        "offpolicy", f"{APEX}/to_return", "s", *column(results, "time_s").values(),
        smaller_is_better=True, peer_name="DQN in one GMI", to_return=TO_RETURN,
        steps=steps["apex"], peer_steps=steps["dqn"],
        reached=[sum(value >= TO_RETURN for value in ends) for ends in returns.values()],
    )  # fmt: skip


def measure_apex(python: str, rounds: int, seconds: float) -> None:
    """Measures row apex."""
    config = apex_config()
    asked = {"config": config, "workers": 1, "seconds": seconds}
    ways = {
        "ours": partial(launched, config, APEX_WARMUP),
        "rllib": partial(ask_peer, "rllib_dqn.py", python=python, **asked),
    }
    results = in_turn(ways, rounds)
    updates = statistics.median(run["updates_per_step"] for run in results["rllib"])
    emit_pairs(
        "offpolicy", f"{APEX}/apex", "steps/s", *column(results, "steps_per_s").values(),
        peer_name="RLlib DQN", updates_per_step=0.25, peer_updates_per_step=round(updates, 3),
        peer_parameters=results["rllib"][0]["parameters"],
    )  # fmt: skip


def main() -> None:
    options_of = parser(__doc__, rounds=3, python=sys.executable)
    options_of.add_argument("--tasks", nargs="+", choices=(*TASKS, APEX), default=[*TASKS, APEX])
    options_of.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="but for Ape-X")
    options_of.add_argument("--to-return", type=int, default=0, metavar="SEEDS")
    options_of.add_argument("--seconds", type=float, default=20.0, help="of RLlib, in row apex")
    options = options_of.parse_args()
    for task in options.tasks:
        if task == APEX:
            if options.rounds:
                measure_apex(options.python, options.rounds, options.seconds)
            if options.to_return:
                measure_to_return(options.to_return)
        else:
            measure(options.python, task, options.rows, options.rounds)
    runtime.shutdown()


if __name__ == "__main__":
    main()
