"""Says what an update is where the number of environments changes: the rules of `tune.keep`.

`update` (the default): an update has as many samples as the config's own, of whatever GMIs and
environments. The horizon follows, down to what its advantages look ahead, and not as far where
more samples are predicted to cost less than the steps that advantages would lose. What PPO learns
of a sample depends on how many there are between two policies that act (Hilton et al. 2021, section
3: the policy that is clipped against; Beukman et al. 2026: the outer step). A larger update with
the horizon as it is (`grown`) is a candidate of its own, and it is predicted what it learns.
`gradient_steps`: the horizon stays, and so do the samples of a gradient step and its learning rate;
their number follows the update (Beukman et al. 2026, recipe of fixed inner steps).
`none`: nothing follows, as the paper has it.

Where a minibatch has other samples, the learning rate goes with the square root of its size, which
is the rule for Adam (Hilton et al. 2021, section 4; Malladi et al. 2022), unless it follows the KL
divergence. The clip range stays: one that goes with the minibatch too has learned more of a step on
five tasks, but on one of them, trained for longer, it has undone what was learned (docs/tuning.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal

from gmi_drl.placement import (
    AUTO,
    Config,
    ConfigError,
    Fault,
    Topology,
    counted,
    resolved,
)
from gmi_drl.placement.config.algorithms.actor_critic import ActorCriticConfig, SegmentsConfig
from gmi_drl.placement.config.algorithms.common import AlgorithmConfig
from gmi_drl.placement.config.algorithms.replay import ReplayConfig
from gmi_drl.placement.resolve import shape_of, simplest
from gmi_drl.selector.record.results import PLAIN, PLAIN_ON_GPU

from .candidate import Candidate
from .efficiency import Prediction

# How much larger than the config's own an update may be where the horizon follows, and what of that
# is tried.
_MOST_GROWTH: Final = 2.0
_GROWTHS: Final = (1.0, 1.25, 1.5, 2.0)
_NEIGHBOURS: Final = 2  # steps of the horizon, either way, for minibatches that divide an update
SAME: Final = 0.1  # updates and minibatches whose sizes differ by less are as large


@dataclass(frozen=True)
class Update:
    """Holds an update with a number of environments."""

    horizon: int
    samples: int  # environment steps between two updates, of all GMIs of all devices
    changes: tuple[tuple[str, float], ...] = ()  # other keys of `algorithm` that follow


def environments(config: Config, topology: Topology) -> int:
    """Counts the steps that an update takes of all GMIs for each step of the horizon."""
    simulators, trainers = _roles(config, topology)
    if config.algorithm.sends_gradients:
        return config.env.num_env  # each agent's gradient is an update
    if config.mode == "async":
        return config.env.num_env * config.experience.batch_segments * trainers
    return config.env.num_env * simulators


def as_given(config: Config, topology: Topology) -> Config:
    """Returns the config; where it says `auto`, with the fewest GMIs and what a plain user has."""
    plain = simplest(config)
    least = least_gmis(config, topology)
    if plain.layout.gmi_per_gpu < least:
        plain = resolved(plain, gmi_per_gpu=least)
    if config.env.num_env != AUTO:
        return plain
    on_gpu = any(device.kind == "gpu" for device in topology.devices)
    return resolved(plain, num_env=PLAIN_ON_GPU if on_gpu else PLAIN)


def least_gmis(config: Config, topology: Topology) -> int:
    """Returns the fewest GMIs of a device: of its template, and with one that is not dropped."""
    template, dropped = config.template, config.algorithm.dropped_agents
    if template.is_split:
        return max(template.least_gmis, dropped + 2 if dropped else 0)
    return max(template.least_gmis, -(-(dropped + 1) // max(len(topology.devices), 1)))


def own_update(config: Config, topology: Topology) -> int:
    """Returns the samples of an update to keep: `tune.batch`, or the config's own."""
    plain = as_given(config, topology)
    return config.tune.batch or environments(plain, topology) * plain.algorithm.horizon


def least_horizon(settings: AlgorithmConfig) -> int:
    """Returns the shortest horizon that is tried, the config's own if that is shorter.

    The weights of GAE, (gamma lambda)^l (Schulman et al. 2016, eq. 16), add up to 1 / (1 - gamma
    lambda): over fewer steps an advantage is mostly the value's guess. Kept experience needs the
    steps whose rewards are summed. A recurrent policy learns to remember over its horizon, which
    stays. Of other algorithms nothing is known: theirs stays.
    """
    own: int = settings.horizon
    if getattr(settings, "recurrent", None) is not None:
        return own
    if isinstance(settings, ReplayConfig):
        return min(own, settings.n_step)
    weight = settings.gamma * getattr(settings, "lam", math.inf)
    return own if weight >= 1 else min(own, math.ceil(1 / (1 - weight)))


def by_learning(config: Config) -> bool:
    """Tells whether learning decides: Algorithm 2 and serving know throughput alone."""
    tune = config.tune
    return tune.objective == "learning" and tune.algorithm == "default" and config.mode != "serving"


def is_predicted(config: Config) -> bool:
    """Tells whether it is predicted what an update learns by its size.

    Not with a replay: its batch is drawn, and has the same samples whoever collected them. Nor with
    whole episodes: there are as many in an update, whoever plays them.
    """
    settings = config.algorithm
    is_fresh = not isinstance(settings, ReplayConfig) and not settings.whole_episodes
    return by_learning(config) and is_fresh


def prediction_of(
    config: Config, topology: Topology, noise_scale: float | None = None
) -> Prediction:
    """Returns how the worth of an update is predicted, with a run's noise scale if there is one."""
    settings = config.algorithm
    lam = getattr(settings, "lam", None)
    decay = 0.0 if lam is None else settings.gamma * lam
    return Prediction(own_update(config, topology), settings.horizon, noise_scale, decay)


def may_grow(config: Config) -> bool:
    """Tells whether larger updates with the config's own horizon are candidates too."""
    return is_predicted(config) and config.tune.keep == "update" and config.tune.batch is None


def update_of(
    config: Config, topology: Topology, gmi_per_gpu: int, num_env: int, *, grown: bool = False
) -> Update | Fault:
    """Returns what an update is with these numbers, by `tune.keep`; a Fault if it cannot be kept.

    The config's own numbers give its own update. `grown`: the horizon stays whatever is kept.
    """
    chosen = resolved(config, gmi_per_gpu=gmi_per_gpu, num_env=num_env)
    settings, envs = config.algorithm, environments(chosen, topology)
    keep, base = config.tune.keep, own_update(config, topology)
    if keep == "none" or config.mode == "serving" or not envs or settings.whole_episodes:
        return Update(settings.horizon, envs * settings.horizon)
    _, trainers = _roles(chosen, topology)
    _, before = _roles(as_given(config, topology), topology)
    horizons = [settings.horizon]
    least = least_horizon(settings)
    if keep == "update" and not grown:
        horizons = _horizons(base / envs, least, config)
    updates = [_update_with(horizon, chosen, envs, trainers, before, base) for horizon in horizons]
    small = [update for update in updates if grown or update.samples <= _MOST_GROWTH * base]
    if keep == "update" and not small:
        batch, samples = config.tune.batch, updates[0].samples
        return Fault(
            "env.num_env" if batch is None else "tune.batch", num_env if batch is None else batch,
            f"{num_env} environments in each GMI, with {gmi_per_gpu} on each device, make an "
            f"update of {samples:,} steps and not {base:,}: no horizon below {least} is tried, as "
            "advantages look so far ahead",
            f"Use fewer, tune.batch: {samples}, or tune.keep: gradient_steps.",
        )  # fmt: skip
    prediction = prediction_of(config, topology) if may_grow(config) else None
    return max(small or updates, key=lambda update: _preference(update, base, settings, prediction))


def followed(
    before: Config, topology: Topology, wanted: Config, wanted_topology: Topology,
    keep: Literal["update", "gradient_steps", "none"] = "update", said: Collection[str] = (),
) -> list[str]:  # fmt: skip
    """Returns what follows the numbers and devices of another config, as overrides.

    Keys of `algorithm` in `said` are left out. ConfigError if the rule cannot be kept.
    """
    own = environments(before, topology) * before.algorithm.horizon  # whatever tuning was to keep
    config: Config = before.model_copy(
        update={
            "hardware": wanted.hardware,
            "experience": wanted.experience,
            "layout": before.layout.model_copy(update={"trainer_gpus": wanted.layout.trainer_gpus}),
            "tune": before.tune.model_copy(update={"keep": keep, "batch": own}),
        }
    )
    gmis, num_env = wanted.layout.gmi_per_gpu, wanted.env.num_env
    assert isinstance(gmis, int)
    assert isinstance(num_env, int)
    update = update_of(config, wanted_topology, gmis, num_env)
    if isinstance(update, Fault):
        remedy = "Use fewer, or another rule: --keep gradient_steps, or none."
        raise ConfigError([Fault("env.num_env", num_env, update.rule, remedy)], "resize")
    follows: dict[str, Any] = {"horizon": update.horizon, **dict(update.changes)}
    follows = {key: value for key, value in follows.items() if key not in said}
    sizes = {"horizon", "minibatches", "batch_size"}
    if keep != "none" and "learning_rate" not in said and not sizes.isdisjoint(said):
        algorithm = wanted.algorithm.model_copy(update=follows)
        after = _minibatch(wanted.model_copy(update={"algorithm": algorithm}), wanted_topology)
        ratio = after / _minibatch(before, topology)
        follows["learning_rate"] = _learning_rate(before.algorithm, ratio)
    return [
        f"algorithm.{key}={value}"
        for key, value in follows.items()
        if value != getattr(before.algorithm, key)
    ]


def _minibatch(config: Config, topology: Topology) -> float:
    """Returns the samples of a minibatch, of all GMIs that train together."""
    settings = config.algorithm
    if isinstance(settings, ReplayConfig):
        return settings.batch_size * _roles(config, topology)[1]
    samples = environments(config, topology) * settings.horizon
    return samples / settings.minibatches if isinstance(settings, ActorCriticConfig) else 1.0


def kept_sentence(config: Config, topology: Topology, update: Update | Candidate) -> str:
    """Says what becomes of the config's update with this one, or a candidate's; "" if nothing."""
    if config.mode == "serving":
        return ""
    before, settings = own_update(config, topology), config.algorithm
    parts = []
    if update.horizon != settings.horizon:
        parts.append(f"horizon {update.horizon:,} instead of {settings.horizon:,}")
    for key, value in update.changes:
        own_value = getattr(settings, key)
        parts.append(f"{key} {_number(value)} instead of {_number(own_value)}")
    follows = ", ".join(parts)
    if update.samples == before:
        return f"an update stays {before:,} steps: {follows}" if follows else ""
    plain = as_given(config, topology)
    gmis = counted(plain.layout.gmi_per_gpu, "GMI")
    base = f" (num_env {plain.env.num_env:,}, {gmis} on each device)"
    base_text = "" if config.is_resolved or config.tune.batch else base
    text = f"an update takes {update.samples:,} steps instead of {before:,}{base_text}"
    if follows:
        return f"{text}, with {follows}"
    if may_grow(config):
        return text
    keeps = "" if config.tune.keep != "none" else " (tune.keep: update keeps it)"
    return f"{text}, which may slow learning down{keeps}"


def _update_with(
    horizon: int, chosen: Config, envs: int, trainers: int, before: int, base: int
) -> Update:
    """Returns the update of a horizon, with what follows of the algorithm's own keys.

    `before`: the GMIs that train as the config is given; `base`: the samples of its update.
    """
    settings, samples = chosen.algorithm, envs * horizon
    if isinstance(settings, ReplayConfig):
        return Update(horizon, samples, _replay_changes(settings, trainers / before))
    if not isinstance(settings, ActorCriticConfig):
        return Update(horizon, samples)
    rows = samples // max(trainers, 1)
    if isinstance(settings, SegmentsConfig) or settings.recurrent is not None:
        rows //= horizon  # environments stay together with all their steps
    size = base / settings.minibatches
    is_kept = chosen.tune.keep == "update" or settings.one_step
    wanted = settings.minibatches if is_kept else samples / size
    minibatches = min(_divisors(rows), key=lambda n: (abs(math.log(n / wanted)), n))
    changes: dict[str, float] = {"minibatches": minibatches}
    changes["learning_rate"] = _learning_rate(settings, samples / minibatches / size)
    return Update(horizon, samples, _differing(settings, changes))


def _replay_changes(settings: ReplayConfig, grown: float) -> tuple[tuple[str, float], ...]:
    """Shares one replay, its batch and its updates out to `grown` times as many GMIs."""
    batch = max(1, round(settings.batch_size / grown))
    changes: dict[str, float] = {
        "batch_size": batch,
        "replay_capacity": max(1, round(settings.replay_capacity / grown)),
        "replay_start": round(settings.replay_start / grown),
        "updates_per_row": float(f"{settings.updates_per_row * grown:.4g}"),
    }
    changes["learning_rate"] = _learning_rate(settings, batch * grown / settings.batch_size)
    return _differing(settings, changes)


def _differing(
    settings: AlgorithmConfig, changes: dict[str, float]
) -> tuple[tuple[str, float], ...]:
    return tuple((key, value) for key, value in changes.items() if value != getattr(settings, key))


def _horizons(exact: float, least: int, config: Config) -> list[int]:
    """Lists the horizons to choose from, where `exact` would keep the samples of an update."""
    own = config.algorithm.horizon
    if exact == own:
        return [own]
    growths = _GROWTHS if may_grow(config) else (1.0,)
    middles = [exact * growth for growth in growths if growth == 1 or exact * growth < own]
    near = {
        horizon
        for middle in middles
        for horizon in range(math.floor(middle) - _NEIGHBOURS, math.ceil(middle) + _NEIGHBOURS + 1)
    }
    return sorted({max(horizon, least) for horizon in near})


def _preference(
    update: Update, base: int, settings: AlgorithmConfig, prediction: Prediction | None
) -> tuple[float, int]:
    """Ranks an update by how well it keeps `base` samples, or what they learn, and minibatches.

    The rank is a sum of logarithms.
    """
    own = getattr(settings, "minibatches", 1)
    loss = abs(math.log(dict(update.changes).get("minibatches", own) / own))
    samples = max(update.samples, base)
    loss += math.log(samples / update.samples)  # fewer samples count no more than `base`
    efficiency = base / samples
    if prediction is not None:
        efficiency = prediction.efficiency(samples, update.horizon)
    return math.log(efficiency) - loss, -update.horizon


def _roles(config: Config, topology: Topology) -> tuple[int, int]:
    """Counts the GMIs that simulate, and those that train, of all devices, for an update.

    Those that it does not wait for are left out: agents of each trainer, or GMIs with all roles.
    """
    planned = config.template.planned(shape_of(config, topology))
    gmis = [roles for device in planned for roles in device]
    simulators, trainers = sum("simulator" in r for r in gmis), sum("trainer" in r for r in gmis)
    dropped = config.algorithm.dropped_agents
    if simulators > trainers:
        return max(0, simulators - dropped * trainers), trainers
    return max(0, simulators - dropped), max(0, trainers - dropped)


def _divisors(rows: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0]
    return [*small, *(rows // n for n in reversed(small) if n * n != rows)] or [1]


def _learning_rate(settings: AlgorithmConfig, grown: float) -> float:
    """Returns the learning rate for minibatches that are `grown` times as large."""
    if abs(grown - 1) <= SAME or settings.followed_kl is not None:
        return settings.learning_rate
    return float(f"{min(1.0, settings.learning_rate * math.sqrt(grown)):.3g}")


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
