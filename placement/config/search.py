"""Defines the config's section `search`: which hyper-parameters are looked for, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from .section import Bounds, Int, Section, as_tuple, broken, pair

SearchAlgorithm = Literal["hyperband", "pbt"]


def _as_choices(value: Any) -> Any:
    """Returns choices as a search's record has them, with tuples as lists."""
    values = as_tuple(value)
    if not isinstance(values, tuple):
        return values
    return tuple(list(item) if isinstance(item, tuple) else item for item in values)


WholeBounds = Annotated[tuple[Int, Int], BeforeValidator(pair)]
Choices = Annotated[tuple[Any, ...], BeforeValidator(_as_choices)]

_KINDS: Final = ("uniform", "log_uniform", "integer", "choice")
# Keys that only one algorithm has.
_PBT: Final = (
    "population", "interval_steps", "truncation", "perturb", "resample", "synchronous",
)  # fmt: skip
USED_BY: Final[Mapping[str, SearchAlgorithm]] = {
    **dict.fromkeys(("eta", "min_steps", "brackets"), "hyperband"),
    **dict.fromkeys(_PBT, "pbt"),
}


class RangeConfig(Section):
    """The values that a key may have; one of these."""

    uniform: Bounds | None = None
    """Any number from the first to the second, all alike."""
    log_uniform: Bounds | None = None
    """The same by orders of magnitude: between 1e-4 and 1e-3 as often as between 1e-3 and 1e-2.
    Both more than 0."""
    integer: WholeBounds | None = None
    """Any whole number from the first to the second, both included."""
    choice: Choices | None = None
    """One of these values; neighbours in the list count as near to each other."""

    @field_validator("uniform", "log_uniform", "integer")
    @classmethod
    def _check_bounds(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return value
        low, high = value
        if not low < high:
            raise broken("the first must be less than the second", "Write [lowest, highest].")
        if info.field_name == "log_uniform" and low <= 0:
            raise broken("both must be more than 0", "Raise the first, or use uniform.")
        return value

    @field_validator("choice")
    @classmethod
    def _check_choice(cls, value: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if value is not None and len(value) < 2:
            raise broken("must have two values or more", "For one, set the key itself.")
        if value is not None and any(choice in value[:i] for i, choice in enumerate(value)):
            raise broken("names a value twice", "Name each value once.")
        return value

    @model_validator(mode="after")
    def _check_kind(self) -> RangeConfig:
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise broken(
                f"has {' and '.join(kinds)}" if kinds else "says nothing",
                f"Give one of {', '.join(_KINDS)}, such as log_uniform: [1e-4, 1e-2].",
            )
        return self

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        keys: dict[str, Any] = handler(self)
        return {key: value for key, value in keys.items() if value is not None}


class SearchConfig(Section):
    """Which hyper-parameters `gmi-drl search` looks for, and how. `gmi-drl launch` ignores it."""

    algorithm: SearchAlgorithm = "hyperband"
    """`hyperband`: many trials, of which the better ones train on, in brackets from many short ones
    to a few long ones; `pbt`: a population that trains, whose worse members go on from better ones'
    checkpoints with changed values."""
    ranges: dict[str, RangeConfig] = Field(min_length=1)
    """What is looked for: keys of `algorithm`, and `env.num_env`, each with its range, such as
    `algorithm.learning_rate: {log_uniform: [1e-4, 1e-2]}`."""
    seed: Int = Field(default=0, ge=0, lt=2**32)
    """Seed of the values that are drawn. Trial n trains with `run.seed` + n."""
    trials_at_once: Int | None = Field(default=None, ge=1)
    """Trials that train side by side; `null`: as many as the devices allow."""
    devices: Int = Field(default=1, ge=1)
    """Devices of a trial, which `layout` cuts into GMIs: GPUs, or groups of `cores` cores."""
    trials_per_device: Int = Field(default=1, ge=1, le=60)
    """Trials that share a GPU, each with its part of memory and SMs: by MPS, or in turns where
    there is none. For trials of one device that leave most of it idle."""
    cores: Int = Field(default=1, ge=1)
    """Cores of each device of a trial, where there are no GPUs."""
    timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    """Seconds without a new line of metrics after which a trial is ended and counts as failed."""
    folder: str = Field(default="searches", min_length=1)
    """Folder that holds all searches."""
    eta: Int = Field(default=3, ge=2, le=100)
    """One in so many trials of a rung trains on."""
    min_steps: Int | None = Field(default=None, ge=1)
    """Environment steps of the shortest rung; the longest has `run.total_steps`. `null`: that by
    `eta` to the third."""
    brackets: Int | None = Field(default=None, ge=1)
    """Brackets to run, the one with the most trials first; `null`: all there are."""
    population: Int = Field(default=8, ge=2, le=10_000)
    """Members that train."""
    interval_steps: Int | None = Field(default=None, ge=1)
    """Environment steps between two looks at who is better; `null`: a tenth of
    `run.total_steps`."""
    truncation: float = Field(default=0.2, gt=0, le=0.5)
    """This share of the members, the worst, go on from this share, the best."""
    perturb: float = Field(default=0.2, gt=0, lt=1)
    """How far a value is moved, up or down: by this factor (`log_uniform`), by this share of the
    range (`uniform`, `integer`), to a neighbour (`choice`)."""
    resample: float = Field(default=0.25, ge=0, le=1)
    """How often a value is drawn anew instead."""
    synchronous: bool = False
    """`true`: all members are waited for at the end of each interval, so that the same seed makes
    the same search; else who ends an interval is compared with those that have ended it so far."""

    @field_validator("ranges", mode="before")
    @classmethod
    def _flatten_ranges(cls, value: Any) -> Any:
        return dict(_flattened("", value)) if isinstance(value, dict) else value

    @field_validator(*USED_BY, mode="before")
    @classmethod
    def _check_is_used(cls, value: Any, info: ValidationInfo) -> Any:
        name, user = info.data.get("algorithm"), USED_BY[info.field_name or ""]
        if name is not None and name != user:
            raise broken(f"algorithm {name} does not use it", f"Leave it out, or use {user}.")
        return value

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        keys: dict[str, Any] = handler(self)
        return {k: v for k, v in keys.items() if USED_BY.get(k, self.algorithm) == self.algorithm}


def _flattened(prefix: str, value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Returns nested sections of `ranges` under dotted keys, as in overrides."""
    flat: list[tuple[Any, Any]] = []
    for key, child in value.items():
        name = f"{prefix}{key}" if isinstance(key, str) else key
        if isinstance(child, dict) and child and not set(child) & set(_KINDS):
            flat += _flattened(f"{name}.", child)
        else:
            flat.append((name, child))
    return flat
