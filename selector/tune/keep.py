"""Keeps what an update is where the number of environments changes: the rules of `tune.keep`.

`update` (the default): an update has as many samples as the config's own, of whatever GMIs and
environments, and its minibatches stay as large. The horizon follows, down to what its advantages
look ahead. What PPO learns of a sample depends on how many there are between two policies that act
(Hilton et al. 2021, section 3: the policy that is clipped against; Beukman et al. 2026: the outer
step), and the horizon is the one key that leaves them alone.
`gradient_steps`: the horizon stays, and so do the samples of a gradient step and its learning rate;
their number follows the update (Beukman et al. 2026, recipe of fixed inner steps).
`none`: nothing follows, as the paper has it.

Where a minibatch cannot stay as large, the learning rate goes with the square root of its size,
which is the rule for Adam (Hilton et al. 2021, section 4; Malladi et al. 2022), unless it follows
the KL divergence. The clip range stays: it bounds how far the policy goes from the one that has
sampled, whatever the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from gmi_drl.placement import AUTO, Config, Fault, Topology, counted, resolved, template_of
from gmi_drl.placement.config.algorithms.common import (
    ActorCriticConfig,
    AlgorithmConfig,
    ReplayConfig,
    SegmentsConfig,
)
from gmi_drl.placement.resolve import shape_of, simplest
from gmi_drl.selector.record.results import PLAIN, PLAIN_ON_GPU

# How much larger than the config's own an update may be where the horizon cannot be shorter.
_MOST_GROWTH: Final = 2.0
_NEIGHBOURS: Final = 2  # steps of the horizon, either way, for minibatches that divide an update
SAME: Final = 0.1  # updates and minibatches whose sizes differ by less are as large


@dataclass(frozen=True)
class Update:
    """An update with so many environments."""

    horizon: int
    samples: int  # environment steps between two updates, of all GMIs of all devices
    changes: tuple[tuple[str, float], ...] = ()  # other keys of `algorithm` that follow


def environments(config: Config, topology: Topology) -> int:
    """Counts the steps that an update takes of all GMIs for each step of the horizon."""
    simulators, trainers = _roles(config, topology)
    if config.mode == "async":
        return config.env.num_env * config.experience.batch_segments * trainers
    return config.env.num_env * simulators


def as_given(config: Config, topology: Topology) -> Config:
    """Returns the config; where it says `auto`, with the fewest GMIs and what a plain user has."""
    plain = simplest(config)
    if config.env.num_env != AUTO:
        return plain
    on_gpu = any(device.kind == "gpu" for device in topology.devices)
    return resolved(plain, num_env=PLAIN_ON_GPU if on_gpu else PLAIN)


def own_update(config: Config, topology: Topology) -> int:
    """Returns the samples of an update to keep: `tune.batch`, or the config's own."""
    plain = as_given(config, topology)
    return config.tune.batch or environments(plain, topology) * plain.algorithm.horizon


def least_horizon(settings: AlgorithmConfig) -> int:
    """Returns the shortest horizon that is tried, the config's own if that is shorter.

    The weights of GAE, (gamma lambda)^l (Schulman et al. 2016, eq. 16), add up to 1 / (1 - gamma
    lambda): over fewer steps an advantage is mostly the value's guess. Kept experience needs the
    steps whose rewards are summed. Of other algorithms nothing is known: theirs stays.
    """
    own: int = settings.horizon
    if isinstance(settings, ReplayConfig):
        return min(own, int(getattr(settings, "n_step", 1)))
    weight = settings.gamma * getattr(settings, "lam", math.inf)
    return own if weight >= 1 else min(own, math.ceil(1 / (1 - weight)))


def update_of(config: Config, topology: Topology, gmi_per_gpu: int, num_env: int) -> Update | Fault:
    """Returns what an update is with these numbers, by `tune.keep`; a Fault if it cannot be kept.

    The config's own numbers give its own update.
    """
    chosen = resolved(config, gmi_per_gpu=gmi_per_gpu, num_env=num_env)
    settings, each = config.algorithm, environments(chosen, topology)
    keep, whole = config.tune.keep, own_update(config, topology)
    if keep == "none" or config.mode == "serving" or not each:
        return Update(settings.horizon, each * settings.horizon)
    wanted = whole if keep == "update" else each * settings.horizon
    least = least_horizon(settings)
    horizons = [settings.horizon]
    if keep == "update":
        exact = wanted / each
        near = range(math.floor(exact) - _NEIGHBOURS, math.ceil(exact) + _NEIGHBOURS + 1)
        horizons = sorted({max(one, least) for one in near}, key=lambda one: abs(one - exact))
    _, trainers = _roles(chosen, topology)
    _, before = _roles(as_given(config, topology), topology)
    updates = [_with(horizon, chosen, each, trainers, before, whole) for horizon in horizons]
    best = min(updates, key=lambda one: _distance(one, wanted, whole, settings))
    if keep == "update" and best.samples > _MOST_GROWTH * wanted:
        batch = config.tune.batch
        return Fault(
            "env.num_env" if batch is None else "tune.batch", num_env if batch is None else batch,
            f"{num_env} environments in each GMI, with {gmi_per_gpu} on each device, make an "
            f"update of {best.samples:,} steps and not {wanted:,}: no horizon below {least} is "
            "tried, as advantages look so far ahead",
            f"Use fewer, tune.batch: {best.samples}, or tune.keep: gradient_steps.",
        )  # fmt: skip
    return best


def kept_sentence(config: Config, topology: Topology, update: Update) -> str:
    """Says what becomes of the config's update with this one; "" if nothing."""
    if config.mode == "serving":
        return ""
    before, settings = own_update(config, topology), config.algorithm
    parts = []
    if update.horizon != settings.horizon:
        parts.append(f"horizon {update.horizon:,} instead of {settings.horizon:,}")
    for key, value in update.changes:
        was = getattr(settings, key)
        parts.append(f"{key} {_number(value)} instead of {_number(was)}")
    follows = ", ".join(parts)
    if update.samples == before:
        return f"an update stays {before:,} steps: {follows}" if follows else ""
    plain = as_given(config, topology)
    gmis = counted(plain.layout.gmi_per_gpu, "GMI")
    base = f" (num_env {plain.env.num_env:,}, {gmis} on each device)"
    told = "" if config.is_resolved or config.tune.batch else base
    text = f"an update takes {update.samples:,} steps instead of {before:,}{told}"
    if follows:
        return f"{text}, by {follows}"
    keeps = "" if config.tune.keep != "none" else " (tune.keep: update keeps it)"
    return f"{text}, which may slow learning down{keeps}"


def _with(
    horizon: int, chosen: Config, each: int, trainers: int, before: int, whole: int
) -> Update:
    """Returns the update of a horizon, with what follows of the algorithm's own keys.

    `before`: the GMIs that train as the config is given; `whole`: the samples of its update.
    """
    settings, samples = chosen.algorithm, each * horizon
    if isinstance(settings, ReplayConfig):
        return Update(horizon, samples, _of_replay(settings, trainers / before))
    if not isinstance(settings, ActorCriticConfig):
        return Update(horizon, samples)
    rows = samples // max(trainers, 1)
    if isinstance(settings, SegmentsConfig):
        rows //= horizon  # segments are not cut
    size = whole / settings.minibatches
    wanted = samples / size
    minibatches = min(_divisors(rows), key=lambda n: (abs(math.log(n / wanted)), n))
    changes: dict[str, float] = {"minibatches": minibatches}
    grown = samples / minibatches / size
    if abs(grown - 1) > SAME and settings.followed_kl is None:
        changes["learning_rate"] = _scaled(settings.learning_rate, grown)
    return Update(horizon, samples, _differing(settings, changes))


def _of_replay(settings: ReplayConfig, grown: float) -> tuple[tuple[str, float], ...]:
    """Shares one replay, its batch and its updates out to `grown` times as many GMIs."""
    batch = max(1, round(settings.batch_size / grown))
    changes: dict[str, float] = {
        "batch_size": batch,
        "replay_capacity": max(1, round(settings.replay_capacity / grown)),
        "replay_start": round(settings.replay_start / grown),
        "updates_per_row": float(f"{settings.updates_per_row * grown:.4g}"),
    }
    joint = batch * grown / settings.batch_size
    if abs(joint - 1) > SAME:
        changes["learning_rate"] = _scaled(settings.learning_rate, joint)
    return _differing(settings, changes)


def _differing(
    settings: AlgorithmConfig, changes: dict[str, float]
) -> tuple[tuple[str, float], ...]:
    return tuple((key, value) for key, value in changes.items() if value != getattr(settings, key))


def _distance(
    update: Update, wanted: float, whole: int, settings: AlgorithmConfig
) -> tuple[float, int]:
    """Tells how far an update is from the one to keep, in logarithms of samples and minibatch."""
    off = abs(math.log(update.samples / wanted))
    own = getattr(settings, "minibatches", 1)
    size = update.samples / dict(update.changes).get("minibatches", own)
    return off + abs(math.log(size / (whole / own))), update.horizon


def _roles(config: Config, topology: Topology) -> tuple[int, int]:
    """Counts the GMIs that simulate, and those that train, of all devices."""
    planned = template_of(config).planned(shape_of(config, topology))
    gmis = [roles for device in planned for roles in device]
    return sum("simulator" in r for r in gmis), sum("trainer" in r for r in gmis)


def _divisors(rows: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0]
    return [*small, *(rows // n for n in reversed(small) if n * n != rows)] or [1]


def _scaled(learning_rate: float, grown: float) -> float:
    return float(f"{min(1.0, learning_rate * math.sqrt(grown)):.3g}")


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
