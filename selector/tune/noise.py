"""Finds how noisy the gradients of a config are: by training a little, or from a run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gmi_drl.launcher.folder.run_folder import METRICS, metrics_in
from gmi_drl.placement import Config
from gmi_drl.selector.errors import NoiseSourceError

from .candidate import Candidate, Space
from .keep import SAME


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
    """Reads the last noise scale of a run's metrics; NoiseSourceError if it is not one's to use."""
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
    for line in reversed(lines):
        if isinstance(noise := line.get("noise_scale"), (int, float)) and noise > 0:
            at = f"{folder} after {line['steps']:,} steps"
            return TunedNoise(float(noise), at)
    raise NoiseSourceError(
        f"--from {folder}: its metrics have no noise_scale. Give a run with several GMIs, or "
        "several minibatches an update; or leave --from out, and it is measured."
    )


def noise_from(line: dict[str, Any]) -> TunedNoise:
    """Returns what a line of a record says."""
    samples = line["samples"]
    return TunedNoise(None if samples is None else float(samples), str(line["source"]))


def is_needed(space: Space) -> bool:
    """Tells whether the candidates' updates differ, so that their worth depends on the noise."""
    samples = [one.samples for row in space.rows for one in row]
    return max(samples) > (1 + SAME) * min(samples)


def plainest(space: Space, num_env: int) -> Candidate:
    """Picks the candidate with the fewest GMIs and about `num_env` environments."""
    return min(space.rows[0], key=lambda one: abs(math.log(one.num_env / num_env)))
