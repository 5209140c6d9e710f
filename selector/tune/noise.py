"""Reads how noisy the gradients of a run were, and whether that says something of a config."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gmi_drl.launcher.folder.run_folder import METRICS, RunFolder, RunFolderError, metrics_in
from gmi_drl.placement import NETWORKS, Config, ConfigError, load_config
from gmi_drl.selector.errors import NoiseSourceError

from .keep import is_predicted

# What a gradient is of: where one of these differs, it is a gradient of another problem.
_ENV: Final = ("id", "options", "wrappers", "max_episode_steps")
_NETWORK: Final = ("name", "class", "network", "recurrent", "share_layers")
# Tuning changes these itself; they say how samples are taken, and not what a gradient is of.
_FREE: Final = ("horizon", "minibatches", "learning_rate", "optimizer")


@dataclass(frozen=True)
class TunedNoise:
    """Holds the gradient noise scale that a tune predicts with."""

    samples: float
    source: str  # in words: where it is from

    def __str__(self) -> str:
        return f"gradient noise scale {self.samples:,.0f} samples ({self.source})"


def noise_of_run(folder: Path, config: Config) -> TunedNoise:
    """Reads the noise scale of a run's metrics; NoiseSourceError if it is not one's to use."""
    if not is_predicted(config):
        raise NoiseSourceError(
            f"--from {folder}: the noise of gradients decides nothing where steps/s are asked for "
            "(tune.objective, tune.algorithm), or with a replay or serving. Leave --from out."
        )
    try:
        run = RunFolder.existing(folder)
        trained = load_config(run.path / "config.yaml")
        lines = metrics_in((run.path / METRICS).read_bytes())
    except RunFolderError:
        raise _unreadable(folder, "no run, and no checkpoint of one, is there") from None
    except ConfigError as error:
        why = f"its config.yaml is none of this version: {error.faults[0]}"
        raise _unreadable(folder, why) from None
    except OSError as error:
        raise _unreadable(folder, f"{METRICS}: {error.strerror}") from None
    if trained.env.id != config.env.id:
        raise NoiseSourceError(
            f"--from {folder}: it is a run of {trained.env.id}, and {config.env.id} is tuned; "
            "another environment's gradients say nothing of this one's. Give a run of this "
            "environment."
        )
    if decisive := list(_differences(trained, config, decisive=True)):
        raise NoiseSourceError(
            f"--from {folder}: it was trained with {', '.join(decisive)}; gradients of another "
            "network, algorithm or environment say nothing of this one's. Give a run of this "
            "config, or leave --from out."
        )
    lines = [line for line in lines if "noise_scale" in line]
    if (level := noise_level([line["noise_scale"] for line in lines])) is not None:
        differences = ", ".join(_differences(trained, config, decisive=False))
        trained_with = f", with {differences}" if differences else ""
        return TunedNoise(level, f"{folder}, of {lines[-1]['steps']:,} steps{trained_with}")
    raise NoiseSourceError(
        f"--from {folder}: its metrics have no noise_scale. Give a run with several GMIs, or "
        "several minibatches an update; or leave --from out."
    )


def _unreadable(folder: Path, why: str) -> NoiseSourceError:
    return NoiseSourceError(
        f"--from {folder}: no run can be read there ({why}). Give the folder of a run, as gmi-drl "
        "runs lists them."
    )


def _differences(trained: Config, config: Config, *, decisive: bool) -> Iterator[str]:
    """Yields the settings in which a run differs from the config.

    `decisive`: those that make it another problem; else those that move its noise scale a little.
    """
    old, new = (source.model_dump(mode="json") for source in (trained, config))
    old_algorithm, new_algorithm = (values["algorithm"] for values in (old, new))
    for settings in (old_algorithm, new_algorithm):  # a preset is the same as its sizes
        if isinstance(name := settings["network"], str) and name in NETWORKS:
            settings["network"] = list(NETWORKS[name])
    if decisive:
        yield from _differing("env", old["env"], new["env"], _ENV)
        yield from _differing("algorithm", old_algorithm, new_algorithm, _NETWORK)
        yield from _differing("roles", old["roles"], new["roles"])
    else:
        keys = [key for key in {**old_algorithm, **new_algorithm} if key not in (*_NETWORK, *_FREE)]
        yield from _differing("algorithm", old_algorithm, new_algorithm, keys)


def _differing(
    section: str, before: Mapping[str, Any], now: Mapping[str, Any],
    keys: Sequence[str] | None = None,
) -> Iterator[str]:  # fmt: skip
    for key in {**before, **now} if keys is None else keys:
        if before.get(key) != now.get(key):
            old, new = (values.get(key, "the default") for values in (before, now))
            yield f"{section}.{key} {old} (here {new})"


def noise_level(scales: Sequence[object]) -> float | None:
    """Returns the median noise scale of the last half of a run's iterations; None if it has none.

    Single ones jump tenfold. One that is None among others was too large to be told, and counts as
    the largest.
    """
    half = scales[len(scales) // 2 :]
    finite = [float(scale) for scale in half if isinstance(scale, (int, float))]
    if not finite:
        return None
    return statistics.median([*finite, *[max(finite)] * (len(half) - len(finite))])
