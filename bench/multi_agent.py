#!/usr/bin/env python3
"""Measures how well agents learn to spread (mpe2's simple_spread), and how many steps a second.

Claims to be tried: agents who share a policy reach seven tenths or more of the way from random
actions to a scripted bound; and a run trains at three times or more the environment steps a second
of RLlib's PPO with the same environments, network and update.

    <algorithm>   the share of that way: (trained - random) / (scripted - random)
    speed         environment steps a second, whole jobs; and of the environments alone, in as many
                  processes, which is the most that a job could come to

Returns are of one agent and one episode of 25 steps, undiscounted, without exploration. Published
ones differ in what is summed and divided, so both ends are measured here, by the same environments:
random actions, and a script that gives each agent a landmark so that the sum of the distances is
least, and steers there. It sees what all agents see.

    bench/multi_agent.py --rows ppo mappo --seeds 5
    bench/multi_agent.py --rows speed --rounds 3
    bench/multi_agent.py --rows ppo --seeds 1 --steps 10000     # a smoke test

Run it on a machine that does nothing else. `speed` needs ray[rllib].
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from modes import Rates, ask_peer, at_once, column, in_turn, launched, meet_others
from report import emit_median, emit_pairs, parser, say

import gmi_drl

EXAMPLE: Final = Path(__file__).resolve().parent.parent / "examples" / "multi_agent_spread.yaml"
ALGORITHMS: Final = ("ppo", "mappo")
ROWS: Final = (*ALGORITHMS, "speed")
EPISODES: Final = 400  # by which each end of the span is measured
COASTING: Final = 0.2  # seconds for which a velocity is assumed to last; tried: 0.1 to 0.4
NEAR: Final = 0.03
Vector = np.ndarray[Any, Any]


def environment() -> Any:
    """Returns one environment of the example."""
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(**config()["env"]["options"])


def config() -> dict[str, Any]:
    """Returns the config of the example."""
    return yaml.safe_load(EXAMPLE.read_text())


def mean_return(scripted: bool, seed: int = 10_000) -> tuple[float, float]:
    """Returns the mean return of an agent in an episode, and its standard error."""
    env, random = environment(), np.random.default_rng(seed)
    returns = []
    for episode in range(EPISODES):
        observations, _ = env.reset(seed=seed + episode)
        episode_return = 0.0
        while env.agents:
            if scripted:
                actions = steered(observations)
            else:
                actions = {agent: int(random.integers(5)) for agent in env.agents}
            observations, rewards, _, _, _ = env.step(actions)
            episode_return += statistics.mean(rewards.values())
        returns.append(episode_return)
    env.close()
    return float(np.mean(returns)), float(np.std(returns) / np.sqrt(EPISODES))


def steered(observations: dict[str, Vector]) -> dict[str, int]:
    """Returns actions that steer each agent to its own landmark.

    An observation begins with the agent's velocity [2] and position [2]; then come the landmarks,
    relative to it [2 for each].
    """
    names = list(observations)
    count = len(names)
    velocity = [observations[name][:2] for name in names]
    landmarks = [observations[name][4 : 4 + 2 * count].reshape(count, 2) for name in names]
    distances = np.linalg.norm(np.stack(landmarks), axis=-1)
    best = min(
        itertools.permutations(range(count)),
        key=lambda order: sum(distances[agent, place] for agent, place in enumerate(order)),
    )
    actions = {}
    for agent, name in enumerate(names):
        # Where it would be if it did nothing: a quarter of its velocity is lost in a step of 0.1 s.
        offset = landmarks[agent][best[agent]] - COASTING * velocity[agent]
        axis = int(abs(offset[1]) > abs(offset[0]))
        has_arrived = abs(offset[axis]) < NEAR
        actions[name] = 0 if has_arrived else 1 + 2 * axis + int(offset[axis] > 0)
    return actions


def trained(algorithm: str, seed: int, steps: int | None, folder: str) -> tuple[float, float]:
    """Trains a run of the example; returns its evaluation return and the seconds that it took."""
    overrides = [f"run.seed={seed}", f"run.folder={folder}", f"algorithm.name={algorithm}"]
    overrides += [f"run.eval_episodes={EPISODES}", "run.checkpoint_every=0"]
    overrides += [] if steps is None else [f"run.total_steps={steps}"]
    began = time.perf_counter()
    result = gmi_drl.launch(EXAMPLE, overrides=overrides, view="none")
    return result.eval_return, time.perf_counter() - began


def learning(algorithm: str, seeds: int, steps: int | None) -> None:
    """Measures the share of the span that an algorithm reaches."""
    lowest, low_error = mean_return(scripted=False)
    highest, high_error = mean_return(scripted=True)
    returns, seconds = [], []
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as folder:
        for seed in range(1, seeds + 1):
            value, duration_s = trained(algorithm, seed, steps, folder)
            returns.append(round(value, 2))
            seconds.append(round(duration_s, 1))
            say(f"{algorithm} seed {seed}: {value:.2f} in {duration_s:.0f} s")
    shares = [(eval_return - lowest) / (highest - lowest) for eval_return in returns]
    emit_median(
        "multi_agent", algorithm, "share of the way from random to scripted", shares, digits=3,
        random_return=round(lowest, 2), random_error=round(low_error, 2),
        scripted_return=round(highest, 2), scripted_error=round(high_error, 2),
        returns=returns, episodes=EPISODES, steps=steps or config()["run"]["total_steps"],
        seconds=seconds,
    )  # fmt: skip


def ours(seconds: float) -> Rates:
    """Measures environment steps a second of a run of the example, with a GMI on each core."""
    cores = len(os.sched_getaffinity(0))
    job = config()
    samples = job["env"]["num_env"] * job["algorithm"]["horizon"] * cores
    job["run"] = {
        "total_steps": samples * max(3, round(seconds * 1_000 * cores / samples)),
        "eval_episodes": 0, "checkpoint_every": 0,
    }  # fmt: skip
    job["layout"] = {"gmi_per_gpu": cores}
    return launched(job)


def bare(seconds: float) -> Rates:
    """Measures the environments alone, with actions at random."""
    return {"steps_per_s": at_once(_step_alone, len(os.sched_getaffinity(0)), seconds)}


def _step_alone(seconds: float) -> float:
    env, random = environment(), np.random.default_rng(os.getpid())
    env.reset()
    actions = [dict(zip(env.agents, map(int, random.integers(5, size=3)), strict=True))
               for _ in range(100)]  # fmt: skip
    meet_others()
    began, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        for action in actions:
            env.step(action)
            if not env.agents:
                env.reset()
        steps += len(actions)
    env.close()
    return steps / elapsed


def speed(rounds: int, seconds: float) -> None:
    """Measures all sides in turn."""
    sides = {
        "ours": lambda: ours(seconds), "bare": lambda: bare(seconds),
        "rllib": lambda: ask_peer("rllib_multi_agent.py", config=config(), seconds=seconds),
    }  # fmt: skip
    speeds = column(in_turn(sides, rounds), "steps_per_s")
    emit_pairs(
        "multi_agent", "speed", "environment steps/s", speeds["ours"], speeds["rllib"],
        peer_name="RLlib PPO", gmis=len(os.sched_getaffinity(0)),
        bare=round(statistics.median(speeds["bare"]), 1),
    )  # fmt: skip


def main() -> None:
    """Measures the rows that are asked for."""
    options_of = parser(__doc__, seeds=5)
    add = options_of.add_argument
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    add("--steps", type=int, default=None, help="of each run; the example's own")
    add("--rounds", type=int, default=3, help="of speed")
    add("--seconds", type=float, default=20.0, help="of each side in each round")
    options = options_of.parse_args()
    for row in options.rows:
        if row == "speed":
            speed(options.rounds, options.seconds)
        else:
            learning(row, options.seeds, options.steps)


if __name__ == "__main__":
    main()
