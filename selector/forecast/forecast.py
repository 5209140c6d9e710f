"""Projects a config on machines: steps/s, efficiency, lag and cost by the number of hosts.

Each of a few hundred tries draws every figure from its range, and then what is random: the slowest
of all GMIs, and losses of hosts in a day. All numbers of hosts have the same draws, so that their
ratio is of the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from gmi_drl.placement import Config, Layout
from gmi_drl.selector.tune.efficiency import Prediction

from .chance import share_that_counts, simulate_async, sync_iteration_s
from .hardware import Hardware
from .model import Phases, Term, Work, phases_of, work_of

TRIES: Final = 100
_ASYNC_TRIES: Final = 24  # each of which simulates so many updates
_UPDATES: Final = 400
Range: TypeAlias = tuple[float, float, float]  # p10, p50, p90
_WITHIN: Final[tuple[Term, ...]] = ("simulate", "infer", "update", "experience",
                                    "reduce in a GPU", "reduce between GPUs")  # fmt: skip


@dataclass(frozen=True)
class Forecast:
    """Holds what is projected for a number of hosts."""

    hosts: int
    gpus: int
    steps_per_s: Range
    efficiency: Range  # steps/s of a host, over those of the only one
    seconds: dict[Term, float]  # of an iteration, medians
    lag: Range | None  # async: updates between collecting and training
    failures_per_day: float
    usd_per_billion_steps: Range
    learned: float  # of a sample, over what one of a single GPU's updates teaches; by `tune`'s rule

    @property
    def dominating(self) -> Term:
        """Returns what takes most of an iteration."""
        return max(self.seconds, key=lambda term: self.seconds[term])

    @property
    def limiting(self) -> Term | None:
        """Returns what takes most of that which one GPU alone would not have; None: nothing."""
        added = {term: s for term, s in self.seconds.items() if term not in _WITHIN}
        term = max(added, key=lambda name: added[name])
        return term if added[term] > 0 else None


def forecast(
    config: Config, layout: Layout, hardware: Hardware, hosts: Sequence[int], tries: int = TRIES
) -> tuple[Work, list[Forecast]]:
    """Projects a resolved config for each number of hosts; ConfigError where no figure is."""
    work = work_of(config, layout, hardware)
    if work.mode == "async":
        tries = min(tries, _ASYNC_TRIES)
    alone = _tries(work, hardware, 1, tries)
    rows = [alone if count == 1 else _tries(work, hardware, count, tries) for count in hosts]
    return work, [_summary(work, hardware, row, alone) for row in rows]


def ladder(most: int) -> list[int]:
    """Returns the numbers of hosts that are shown: powers of two, and the last."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*powers, most]


@dataclass(frozen=True)
class _Tries:
    """Holds the tries for a number of hosts, a row for each."""

    hosts: int
    steps_per_s: np.ndarray
    usd_per_step: np.ndarray
    seconds: dict[Term, np.ndarray]
    lags: np.ndarray | None
    failures_per_day: np.ndarray


def _tries(work: Work, hardware: Hardware, hosts: int, tries: int) -> _Tries:
    rates, costs, losses, lags = [], [], [], []
    seconds: dict[Term, list[float]] = {}
    for seed in range(tries):
        rng = np.random.default_rng(seed)
        drawn = hardware.drawn(rng)
        phases = phases_of(work, drawn, hosts)
        iteration_s, samples, try_lags = iteration_of(work, phases, drawn, hosts, rng)
        failures = hosts * drawn["failures_per_host_day"]
        share = share_that_counts(
            failures_per_day=failures, recovery_s=drawn["recovery_s"],
            checkpoint_s=work.checkpoint_every * iteration_s, rng=rng,
        )  # fmt: skip
        terms = phases.terms()
        # A GMI that is alone is slower or faster by chance, and waits for nobody.
        alone = hosts * work.gpus * max(work.simulators, work.trainers) == 1
        waited_s = 0.0 if alone else iteration_s - _expected_s(work, phases)
        terms["waiting for the slowest"] = max(0.0, waited_s)
        terms["failures"] = iteration_s * (1 / max(share, 1e-9) - 1)
        for term, value in terms.items():
            seconds.setdefault(term, []).append(value)
        rate = samples / iteration_s * share
        rates.append(rate)
        usd_per_hour = hosts * work.gpus * drawn["price_usd_per_gpu_hour"]
        costs.append(usd_per_hour / 3600 / max(rate, 1e-9))
        losses.append(failures)
        if try_lags is not None:
            lags.append(try_lags)
    return _Tries(
        hosts=hosts,
        steps_per_s=np.array(rates),
        usd_per_step=np.array(costs),
        seconds={term: np.array(values) for term, values in seconds.items()},
        lags=np.concatenate(lags) if lags else None,
        failures_per_day=np.array(losses),
    )


def iteration_of(
    work: Work, phases: Phases, hardware: Hardware, hosts: int, rng: np.random.Generator
) -> tuple[float, float, np.ndarray | None]:
    """Returns an iteration's seconds, the steps that it makes on all hosts, and lags if any."""
    spread, jitter = hardware["spread_percent"] / 100, hardware["jitter_percent"] / 100
    if work.mode == "async":
        agents = work.rollout_gpus * work.simulators
        trainers = work.trainer_gpus * work.trainers
        batch = work.samples // (work.num_env * work.horizon * trainers)
        result = simulate_async(
            agents=agents, trainers=trainers, groups=hosts, rollout_s=phases.rollout_s,
            send_s=phases.experience_s, update_s=phases.training_s, capacity=work.capacity,
            batch=batch, spread=spread, jitter=jitter, rng=rng, updates=_UPDATES,
        )  # fmt: skip
        segments = batch * trainers * hosts
        return segments / result.segments_per_s, float(hosts * work.samples), result.lags
    if work.mode == "serving":  # nobody waits for anybody
        steps = hosts * work.rollout_gpus * work.simulators * work.num_env * work.horizon
        return phases.rollout_s, float(steps), None
    iteration_s = sync_iteration_s(
        phases.rollout_s + phases.experience_s, phases.update_s, phases.gradient_steps,
        devices=hosts * work.gpus, gmis=max(work.simulators, work.trainers),
        spread=spread, jitter=jitter, rng=rng,
    )  # fmt: skip
    iteration_s += phases.gradient_steps * phases.reduce_s
    return iteration_s, float(hosts * work.samples), None


def _expected_s(work: Work, phases: Phases) -> float:
    """Returns what an iteration would take if nobody waited for anybody."""
    if work.mode == "async":  # both sides at once, so that the longer counts
        batches = work.samples / (work.num_env * work.horizon)
        agents = work.rollout_gpus * work.simulators
        return max(phases.training_s, phases.rollout_s * batches / agents)
    return phases.rollout_s + phases.experience_s + phases.training_s


def _summary(work: Work, hardware: Hardware, row: _Tries, alone: _Tries) -> Forecast:
    own_samples = max(1, work.samples // max(1, work.gpus))  # of one GPU's updates
    learned = Prediction(own_samples, work.horizon).efficiency(
        max(1, work.samples) * row.hosts, work.horizon
    )
    return Forecast(
        hosts=row.hosts,
        gpus=row.hosts * work.gpus,
        steps_per_s=_range(row.steps_per_s),
        efficiency=_range(row.steps_per_s / alone.steps_per_s / row.hosts),
        seconds={term: float(np.median(values)) for term, values in row.seconds.items()},
        lag=None if row.lags is None else _range(row.lags),
        failures_per_day=float(np.median(row.failures_per_day)),
        usd_per_billion_steps=_range(1e9 * row.usd_per_step),
        learned=learned if work.mode != "serving" else 1.0,
    )


def _range(values: np.ndarray) -> Range:
    low, middle, high = (float(value) for value in np.percentile(values, [10, 50, 90]))
    return low, middle, high
