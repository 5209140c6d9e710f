#!/usr/bin/env python3
"""Measures what the gradient noise scale costs an update (docs/noise-scale.md).

    bench/noise_scale.py [--rounds 25]
    bench/noise_scale.py --dry                one tiny round of each: shows that it works

Claim: less than 0.5 % of an update.

Updates of the examples' policies on made-up experience, on one thread: CartPole with 64
environments and HalfCheetah with 16, by PPO, for one GMI and as for one of two (without
the other, as waiting is not measured), and CartPole by DQN. Two rows each:

- `update/<case>`: milliseconds of an update until its stats are read, with the noise scale and
  without it, which take turns. The ratio is without over with.
- `share/<case>`: the percentage of an update that is spent in measuring, by a clock around that.
  It holds on a busy machine, too. The ratio is 0.5 % over it: above 1 the claim holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

import torch
from report import emit_median, emit_pairs, parser

from gmi_drl.comm import solo_group
from gmi_drl.placement import load_config
from gmi_drl.roles.algorithms import algorithm_class
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.optimizers.noise_scale import NoiseMeter
from gmi_drl.roles.optimizers.replay import OnReplay
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.samples.replay import ReplayBuffer

EXAMPLES: Final = Path(__file__).resolve().parents[1] / "examples"
CLAIM: Final = 0.5  # percent of an update
CASES: Final = {
    "cartpole": ("cartpole.yaml", ["env.num_env=64"], 1),
    "cartpole/two_gmis": ("cartpole.yaml", ["env.num_env=64"], 2),
    "halfcheetah": ("halfcheetah.yaml", [], 1),
    "halfcheetah/two_gmis": ("halfcheetah.yaml", [], 2),
    "cartpole/dqn": ("dqn_cartpole.yaml", ["algorithm.replay_start=0"], 1),
}


class Off(NoiseMeter):
    """Measures nothing."""

    def share(self, *, always: bool) -> None:
        pass

    def measure(self) -> None:
        pass

    def take(self, measured: Sequence[float]) -> float | None:
        return None


class Timed(NoiseMeter):
    """Measures, and adds up how long that takes."""

    spent_ns = 0

    def begin(self, samples: int) -> None:
        self._timed(super().begin, samples)

    def share(self, *, always: bool) -> None:
        self._timed(super().share, always=always)

    def measure(self) -> None:
        self._timed(super().measure)

    def take(self, measured: Sequence[float]) -> float | None:
        return self._timed(super().take, measured)

    def _timed(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        begun_ns = perf_counter_ns()
        result = call(*arguments, **options)
        self.spent_ns += perf_counter_ns() - begun_ns
        return result


class AsOfTwo:
    """Stands in for a group of two ranks whose other rank brings the same, without a wait."""

    size, rank = 2, 0

    def bucket(self, *arguments: Any) -> Any:
        reducer = solo_group().bucket(*arguments)
        reducer.size = 2
        return reducer


class Update:
    """Repeats one update of an example's policy on what a random policy has sampled."""

    def __init__(self, case: str, meter: type[NoiseMeter]) -> None:
        example, overrides, gmis = CASES[case]
        config = load_config(EXAMPLES / example, overrides)
        settings, env = config.algorithm, make_env(config.env.id, config.env.num_env)
        cls, draw = algorithm_class(settings), torch.Generator().manual_seed(0)
        network = cls.make_network(settings, env, draw)
        width = env.observation_space.shape[0]
        policy, normalizers = cls.make_policy(network, settings), Normalizers.of(settings, width)
        algorithm = cls(settings, policy, normalizers)
        self._batch = Batch.allocate(
            settings.horizon, env.num_env, width, policy, torch.device("cpu"),
            filled=cls.filled, recorded=cls.recorded, bootstrap=cls.bootstrap,
        )  # fmt: skip
        Collector(env, algorithm, self._batch, torch.Generator().manual_seed(1)).collect(0)
        env.close()
        self._sampled = {name: column.clone() for name, column in self._batch.columns.items()}
        replays = settings.kept_steps > 0
        self.learner = Learner(algorithm, draw, None if replays else self._batch)
        self.meter = meter()
        self.learner.noise = self.learner._step.noise = self.meter
        group: Any = AsOfTwo() if gmis > 1 else solo_group()
        self.learner.connect(group)
        self._train: Callable[[Batch], None] = self.learner.update
        if replays:
            replay_settings = settings.model_copy(update={"replay_start": 0})
            replay = ReplayBuffer.of(replay_settings, self._batch, cls.replayed, draw)
            self._train = OnReplay(self.learner, replay).update

    def __call__(self) -> float:
        """Trains once; returns the milliseconds until the stats were there."""
        for name, column in self._sampled.items():  # an update changes some columns in place
            self._batch[name].copy_(column)
        begun_ns = perf_counter_ns()
        self._train(self._batch)
        self.learner.stats()
        return (perf_counter_ns() - begun_ns) / 1e6


def measure(case: str, rounds: int, updates: int) -> tuple[list[float], list[float], list[float]]:
    """Returns for each round the milliseconds with and without it, and its share in percent."""
    contenders = [Update(case, meter) for meter in (NoiseMeter, Off, Timed)]
    for contender in contenders:
        contender()
    results: list[list[float]] = [[], [], []]
    timed = contenders[2].meter
    for number in range(rounds):
        for place in range(3):
            index = (place + number) % 3
            timed.spent_ns = 0
            took_ms = [contenders[index]() for _ in range(updates)]
            if index == 2:
                results[2].append(100 * timed.spent_ns / 1e6 / sum(took_ms))
            else:
                results[index].append(statistics.median(took_ms))
    on_ms, off_ms, share = results
    return on_ms, off_ms, share


def main(arguments: Sequence[str] | None = None) -> None:
    options_of = parser(__doc__, rounds=25)
    options_of.add_argument("--dry", action="store_true", help="one tiny round; keeps nothing")
    options = options_of.parse_args(arguments)
    torch.set_num_threads(1)
    rounds, updates = (1, 1) if options.dry else (options.rounds, 5)
    for case in CASES:
        on_ms, off_ms, share = measure(case, rounds, updates)
        emit_pairs(
            "noise_scale", f"update/{case}", "ms", on_ms, off_ms, smaller_is_better=True,
            digits=3, updates=updates, dry=options.dry,
        )  # fmt: skip
        emit_median(
            "noise_scale", f"share/{case}", "%", share, peer=CLAIM, smaller_is_better=True,
            digits=4, updates=updates, dry=options.dry,
        )  # fmt: skip


if __name__ == "__main__":
    main()
