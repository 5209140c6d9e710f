"""Finds how noisy the gradients of a config are: by training a little, or from a run."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gmi_drl.launcher.folder.run_folder import METRICS, metrics_in
from gmi_drl.placement import Config
from gmi_drl.selector.errors import NoiseSourceError

from .candidate import Candidate, Space
from .keep import is_predicted


@dataclass(frozen=True)
class TunedNoise:
    """The gradient noise scale that a tune predicts with."""

    samples: float | None  # None: there is none
    source: str  # in words: where it is from, or why there is none

    def __str__(self) -> str:
        if self.samples is None:
            return f"no noise scale: {self.source}"
        return f"gradient noise scale {self.samples:,.0f} samples ({self.source})"


def noise_of_run(folder: Path, config: Config) -> TunedNoise:
    """Reads the noise scale of a run's metrics; NoiseSourceError if it is not one's to use."""
    if not is_predicted(config):
        raise NoiseSourceError(
            f"--from {folder}: the noise of gradients decides nothing where steps/s are asked for "
            "(tune.objective, tune.algorithm), or with a replay or serving. Leave --from out."
        )
    try:
        env = json.loads((folder / "run.json").read_text(encoding="utf-8")).get("env")
        lines = metrics_in((folder / METRICS).read_bytes())
    except (OSError, ValueError, AttributeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise NoiseSourceError(
            f"--from {folder}: no run can be read there ({said}). Give the folder of a run, as "
            "gmi-drl runs lists them."
        ) from None
    if env != config.env.id:
        raise NoiseSourceError(
            f"--from {folder}: it is a run of {env}, and {config.env.id} is tuned; another "
            "environment's gradients say nothing of this one's. Give a run of this environment."
        )
    lines = [line for line in lines if "noise_scale" in line]
    if (level := noise_level([line["noise_scale"] for line in lines])) is not None:
        return TunedNoise(level, f"{folder}, of {lines[-1]['steps']:,} steps")
    raise NoiseSourceError(
        f"--from {folder}: its metrics have no noise_scale. Give a run with several GMIs, or "
        "several minibatches an update; or leave --from out, and it is measured."
    )


def noise_from(line: dict[str, Any]) -> TunedNoise:
    """Returns what a line of a record says."""
    samples = line["samples"]
    return TunedNoise(None if samples is None else float(samples), str(line["source"]))


def noise_level(scales: Sequence[object]) -> float | None:
    """Returns the median noise scale of the last half of a run's iterations; None if it has none.

    Single ones jump tenfold. One that is None among others was too large to be told, and counts as
    the largest.
    """
    half = scales[len(scales) // 2 :]
    told = [float(one) for one in half if isinstance(one, (int, float))]
    if not told:
        return None
    return statistics.median([*told, *[max(told)] * (len(half) - len(told))])


def to_measure(space: Space, own: Candidate | None, num_env: int) -> Candidate:
    """Picks what to train for the noise: the config as given, or one with about `num_env`.

    Of the fewest GMIs, two if there are rows of as many: one with one minibatch has none.
    """
    if own is not None:
        return own
    rows = [row for row in space.rows if not row[0].row.grown] or list(space.rows)
    several = [row for row in rows if row[0].row.gmi_per_gpu > 1] or rows
    return min(several[0], key=lambda one: abs(math.log(one.num_env / num_env)))
