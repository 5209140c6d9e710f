#!/usr/bin/env python3
"""Measures A3C by `gmi_drl.rl` beside the same written on actors of the real Ray.

Claim to be tried: `rl.AsyncGradients` over `rl.A2C` applies several times as many gradients a
second as the loop of RLlib's paper (Liang et al., 2018, figure 4) on Ray's own actors. On both
sides evaluators of one thread each sample CartPole-v1 and differentiate, a driver waits for any of
them, applies its gradient by Adam, and sends that one the new weights. Environments, horizon, loss
and network (two layers of 64 units and one that gives logits and value) are the same; neither side
normalises.

    <n>/8x8    n evaluators of 8 environments, gradients of 8 steps each: the defaults of rl.A2C
    <n>/1x5    one environment, 5 steps: those of A3C's paper (Mnih et al., 2016)

Rows are `a3c/...`, in gradients/s; `steps_per_s` and `peer_steps_per_s` are those of environments.
Ray's evaluators step Gymnasium's own vectorised CartPole, or, if there is one, Gymnasium's plain
one. Each measurement is a process of its own; the sides take turns, round after round.

Needs the extra [bench].

    bench/rl/a3c_against_ray.py --rounds 5
    bench/rl/a3c_against_ray.py --rows 2/8x8 --seconds 1 --rounds 1     # a smoke test
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "runtime"))

import numpy as np
import torch
from children import answer, ask
from modes import Rates, column, in_turn
from report import emit_pairs, parser
from torch import nn

ROWS: Final = ("2/8x8", "4/8x8", "2/1x5", "4/1x5")
GAMMA: Final = 0.99
LEARNING_RATE: Final = 7e-4
VALUE_COEF: Final = 0.5
MAX_GRAD_NORM: Final = 0.5
WAIT_S: Final = 60.0  # for the first of the gradients
Vector = np.ndarray[Any, Any]


def parse_row(row: str) -> tuple[int, int, int]:
    """Returns evaluators, environments of each, and horizon."""
    count, _, shape = row.partition("/")
    num_env, _, horizon = shape.partition("x")
    return int(count), int(num_env), int(horizon)


def timed(step: Callable[[], None], seconds: float) -> float:
    """Returns the calls of `step` a second, after some that are not counted."""
    until = time.perf_counter() + seconds / 4
    while time.perf_counter() < until:
        step()
    begun, number = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        step()
        number += 1
    return number / (time.perf_counter() - begun)


def ours(row: str, seconds: float) -> Rates:
    """Measures gradients a second of this library; returns also the number of parameters."""
    from gmi_drl import rl, runtime

    count, num_env, horizon = parse_row(row)
    settings = {
        "network": [64, 64], "activation": "tanh", "horizon": horizon, "gamma": GAMMA,
        "learning_rate": LEARNING_RATE, "value_coef": VALUE_COEF, "max_grad_norm": MAX_GRAD_NORM,
        "normalize_observation": False, "normalize_value": False, "normalize_advantage": False,
    }  # fmt: skip
    runtime.init(["gmi_drl.rl"])
    evaluators = [
        rl.Evaluator.remote(
            env="CartPole-v1", algorithm=rl.A2C, num_env=num_env, settings=settings, seed=number
        )
        for number in range(count)
    ]
    optimizer = rl.AsyncGradients(rl.A2C, evaluators)
    try:
        rate = timed(lambda: optimizer.step() and None, seconds)
    finally:
        optimizer.close()
        runtime.shutdown()
    parameters = optimizer.graph.policy.network.parameters()
    return {"gradients_per_s": rate, "parameters": sum(p.numel() for p in parameters)}


# The same on Ray.


class Network(nn.Module):
    """A network with logits and value of CartPole's observations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
        )

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        head = self.layers(observation)
        return head[..., :2], head[..., 2]

    def vector(self) -> Vector:
        """Returns the parameters as one array."""
        return nn.utils.parameters_to_vector(self.parameters()).detach().numpy()

    @torch.no_grad()
    def load(self, vector: Vector) -> None:
        nn.utils.vector_to_parameters(torch.from_numpy(np.array(vector)), self.parameters())


class RayEvaluator:
    """Holds environments and a network, samples, and differentiates."""

    def __init__(self, num_env: int, horizon: int, seed: int) -> None:
        import gymnasium

        torch.set_num_threads(1)
        self._network, self._horizon, self._num_env = Network(), horizon, num_env
        torch.manual_seed(seed)
        if num_env == 1:
            self._env: Any = gymnasium.make("CartPole-v1", disable_env_checker=True)
            self._observation = self._env.reset(seed=seed)[0][None]
        else:
            self._env = gymnasium.make_vec(
                "CartPole-v1", num_env, vectorization_mode="vector_entry_point"
            )
            self._observation = self._env.reset(seed=seed)[0]
        self._resets = np.zeros(num_env, bool)  # where the next step only begins an episode

    def _step(self, action: Vector) -> tuple[Vector, Vector]:
        """Takes a step; returns its rewards, and where an episode has ended."""
        if self._num_env > 1:
            self._observation, reward, terminated, truncated, _ = self._env.step(action)
            return reward, terminated | truncated
        observation, reward, terminated, truncated, _ = self._env.step(int(action[0]))
        ended = terminated or truncated
        self._observation = (self._env.reset()[0] if ended else observation)[None]
        return np.array([reward]), np.array([ended])

    def gradient(self, vector: Vector) -> Vector:
        """Samples a horizon with these parameters, and returns the gradient of its loss."""
        network, horizon = self._network, self._horizon
        network.load(vector)
        shape = (horizon, self._num_env)
        observations = torch.empty(*shape, 4)
        actions = torch.empty(shape, dtype=torch.int64)
        rewards, ends, counts = np.empty(shape), np.empty(shape, bool), np.empty(shape, bool)
        with torch.no_grad():
            for t in range(horizon):
                observations[t] = torch.from_numpy(self._observation)
                logits, _ = network(observations[t])
                actions[t] = torch.multinomial(logits.softmax(-1), 1)[:, 0]
                counts[t] = ~self._resets
                rewards[t], ends[t] = self._step(actions[t].numpy())
                if self._num_env > 1:  # Gymnasium's vectors reset in the step after the last one
                    self._resets = ends[t]
            _, last = network(torch.from_numpy(np.asarray(self._observation, np.float32)))
        returns, next_return = np.empty(shape, np.float32), last.numpy()
        for t in reversed(range(horizon)):
            next_return = returns[t] = rewards[t] + GAMMA * np.where(ends[t], 0.0, next_return)
        target, weight = torch.from_numpy(returns), torch.from_numpy(counts).float()
        logits, value = network(observations)
        log_prob = logits.log_softmax(-1).gather(-1, actions[..., None])[..., 0]
        advantage = (target - value).detach()
        loss = (weight * (VALUE_COEF * 0.5 * (value - target) ** 2 - advantage * log_prob)).mean()
        network.zero_grad()
        loss.backward()
        parts = [parameter.grad.flatten() for parameter in network.parameters()]
        return torch.cat(parts).numpy()


def on_ray(row: str, seconds: float) -> Rates:
    """Measures gradients a second of Ray; returns also the number of parameters."""
    import ray

    count, num_env, horizon = parse_row(row)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    torch.set_num_threads(1)
    kind = ray.remote(num_cpus=0)(RayEvaluator)
    evaluators = [kind.remote(num_env, horizon, number) for number in range(count)]
    network = Network()
    adam = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)
    running = {evaluator.gradient.remote(network.vector()): evaluator for evaluator in evaluators}

    def step() -> None:
        (ref,), _ = ray.wait(list(running), num_returns=1, timeout=WAIT_S)
        evaluator, offset = running.pop(ref), 0
        gradient = torch.from_numpy(np.array(ray.get(ref)))
        for parameter in network.parameters():
            parameter.grad = gradient[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        nn.utils.clip_grad_norm_(network.parameters(), MAX_GRAD_NORM)
        adam.step()
        running[evaluator.gradient.remote(network.vector())] = evaluator

    try:
        rate = timed(step, seconds)
    finally:
        ray.shutdown()
    return {"gradients_per_s": rate, "parameters": len(network.vector())}


SIDES: Final = {"ours": ours, "ray": on_ray}


def measure(row: str, options: argparse.Namespace) -> None:
    """Runs both sides in turn, round after round, and emits the row."""
    _, num_env, horizon = parse_row(row)

    def child(side: str) -> Rates:
        reply = ask(__file__, "--side", side, "--rows", row, "--seconds", str(options.seconds))
        if "error" in reply:
            raise SystemExit(f"{row} failed on {side}: {reply['error']}")
        return reply["found"]

    results = in_turn({side: functools.partial(child, side) for side in SIDES}, options.rounds)
    numbers = {side: set(counts) for side, counts in column(results, "parameters").items()}
    if numbers["ours"] != numbers["ray"]:
        raise SystemExit(f"the networks differ, in parameters: {numbers}")
    our_rates, peer_rates = column(results, "gradients_per_s").values()
    steps = num_env * horizon
    emit_pairs(
        "a3c_against_ray", f"a3c/{row}", "gradients/s", our_rates, peer_rates,
        steps_per_s=round(steps * statistics.median(our_rates)),
        peer_steps_per_s=round(steps * statistics.median(peer_rates)),
        peer_name=f"ray {version('ray')}", parameters=numbers["ours"].pop(),
    )  # fmt: skip


def main() -> None:
    options_of = parser(__doc__, rounds=5)
    options_of.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    options_of.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    options_of.add_argument("--side", choices=SIDES, help="it alone, whose answer is printed")
    options = options_of.parse_args()
    if options.side:
        answer(lambda: SIDES[options.side](options.rows[0], options.seconds))
        return
    for row in options.rows:
        measure(row, options)


if __name__ == "__main__":
    main()
