#!/usr/bin/env python3
"""Compares PPO-ES with PPO at equal steps: examples/rl/ppo_es.py, seed by seed.

Claim to be tried (RLlib's paper, section 5.3, on Walker2d): evolution over what PPO makes of its
policies comes to higher returns than PPO alone, where both have taken as many steps; here those of
all members together. Both have the same settings, on CartPole those of the example, and are judged
by their greedy policy in 20 episodes.

    bench/ppo_es.py --seeds 5                            # CartPole, 40,000 steps
    bench/ppo_es.py --env Walker2d-v5 --steps 393216     # 12 generations; a quarter of an hour
    bench/ppo_es.py --seeds 1 --steps 4000               # a smoke test
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import torch
from report import emit_pairs, parser, say

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "rl"))

import ppo_es

WALKER = {  # those of examples/halfcheetah.yaml, with a constant rate
    "network": "ant", "horizon": 256, "learning_rate": 5e-4, "epochs": 8, "minibatches": 4,
    "schedule": "constant", "value_coef": 1.0, "init_log_std": -0.5,
}  # fmt: skip


class WalkerMember(ppo_es.Member):
    """PPO on Walker2d, 8,192 steps a generation."""

    env = "Walker2d-v5"
    settings = WALKER


MEMBERS = {member.env: member for member in (ppo_es.Member, WalkerMember)}


def alone(member: type[ppo_es.Member], steps: int, seed: int) -> float:
    """Trains PPO, with one evaluator like that of a member, and plays it greedily."""
    torch.set_num_threads(1)
    optimizer = member(seed).optimizer
    while optimizer.steps < steps:
        optimizer.step()
    score = optimizer.evaluate()["eval_return"]
    optimizer.close()
    return score


def main() -> None:
    """Measures all seeds, and emits one row."""
    options_of = parser(__doc__, seeds=5, steps=40_000)
    options_of.add_argument("--env", choices=MEMBERS, default="CartPole-v1")
    options = options_of.parse_args()
    member = MEMBERS[options.env]
    ours, peers = [], []
    for seed in range(options.seeds):
        ours.append(ppo_es.main(options.steps, seed, member))
        peers.append(alone(member, options.steps, seed))
        say(f"seed {seed}: PPO-ES {ours[-1]:.1f}, PPO {peers[-1]:.1f}")
    emit_pairs(
        "ppo_es", options.env, "greedy return", ours, peers, steps=options.steps, peer_name="PPO",
        ratio=statistics.median(ours) / statistics.median(peers),  # seeds are no pairs
    )  # fmt: skip


if __name__ == "__main__":
    main()
