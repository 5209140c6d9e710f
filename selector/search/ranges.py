"""Draws hyper-parameters from their declared ranges, moves them within, and applies them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gmi_drl.placement import Config, RangeConfig

from .trial_run import Values

_DRAWS, _MOVES = 0, 1  # streams of random numbers


class Ranges:
    """Draws from a config's search ranges; `seed` and the trial decide each draw."""

    def __init__(self, ranges: Mapping[str, RangeConfig], seed: int) -> None:
        self._ranges, self._seed = dict(ranges), seed

    def draw(self, trial: int) -> dict[str, Any]:
        """Draws the values that a trial begins with."""
        random = np.random.default_rng((self._seed, _DRAWS, trial))
        return {key: _drawn(span, random) for key, span in self._ranges.items()}

    def explored(
        self, values: Values, place: tuple[int, int], perturb: float, resample: float
    ) -> dict[str, Any]:
        """Returns `values`, each drawn anew with probability `resample`, else moved a little.

        Jaderberg et al. (2017), section 3, move all by a factor. A discount of 0.99 times 1.2 is
        none, so only a number of a `log_uniform` moves by 1 - `perturb` or 1 + `perturb`, others by
        that share of the range, a choice to its neighbour. None stays what it is, as a copy with
        the same values would try nothing new. `place` (generation, member) decides the draws.
        """
        random = np.random.default_rng((self._seed, _MOVES, *place))
        return {
            key: _changed(span, values[key], random, perturb, resample)
            for key, span in self._ranges.items()
        }


def _drawn(span: RangeConfig, random: np.random.Generator) -> Any:
    if span.uniform is not None:
        return _within(random.uniform(*span.uniform), span.uniform)
    if span.log_uniform is not None:
        low, high = map(math.log, span.log_uniform)
        return _within(math.exp(random.uniform(low, high)), span.log_uniform)
    if span.integer is not None:
        return int(random.integers(span.integer[0], span.integer[1], endpoint=True))
    assert span.choice is not None
    return span.choice[int(random.integers(len(span.choice)))]


def _changed(
    span: RangeConfig, value: Any, random: np.random.Generator, perturb: float, resample: float
) -> Any:
    if random.random() < resample and (drawn := _drawn(span, random)) != value:
        return drawn
    change = perturb if random.random() < 0.5 else -perturb
    moved = _moved(span, value, change)
    return moved if moved != value else _moved(span, value, -change)  # at an end of its range


def _moved(span: RangeConfig, value: Any, by: float) -> Any:
    if span.uniform is not None:
        low, high = span.uniform
        return _within(value + by * (high - low), span.uniform)
    if span.log_uniform is not None:
        return _within(value * (1.0 + by), span.log_uniform)
    if span.integer is not None:
        first, last = span.integer
        step = max(1, round(abs(by) * (last - first)))
        return min(max(value + (step if by > 0 else -step), first), last)
    assert span.choice is not None
    index = span.choice.index(value) + (1 if by > 0 else -1)
    return span.choice[min(max(index, 0), len(span.choice) - 1)]


def _within(value: float, bounds: tuple[float, float]) -> float:
    """Clips a value to its bounds, as rounding may lead outside."""
    return float(min(max(value, bounds[0]), bounds[1]))


def applied(config: Config, values: Values, **run: Any) -> Config:
    """Returns `config` without its search, with values; ValidationError if they do not fit."""
    data = config.model_dump(mode="json")
    del data["search"]
    data["run"] |= run
    for key, value in values.items():
        section, _, name = key.partition(".")
        data[section][name] = value
    return Config.model_validate(data)


def text_of(value: Any) -> str:
    """Returns a value as tables show it: 0.00031, 0.9995, [64, 64]."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
