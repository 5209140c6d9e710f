"""Defines the config's section `tune`: what `gmi-drl tune` looks for, and where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from .section import Int, Seconds, Section, as_tuple, broken

_Counts = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], BeforeValidator(as_tuple)]


class TuneConfig(Section):
    """How `gmi-drl tune` finds `num_env` and `gmi_per_gpu`."""

    objective: Literal["steps", "reward"] = Field(
        default="steps",
        description="`steps`: the most environment steps a second; `reward`: the best few of "
        "those train for the same time, and the highest return wins (not in mode serving).",
    )
    algorithm: Literal["default", "paper"] = Field(
        default="default",
        description="How it searches. `paper`: GMI-DRL's Algorithm 2; `default`: more kinds of "
        "candidates, by fewer measurements.",
    )
    budget_s: Seconds = Field(
        default=300.0,
        gt=0,
        description="Seconds that tuning may take, all in all; or a time as `5m` or `1h30m`.",
    )
    batch: Int | None = Field(
        default=None,
        ge=1,
        description="Environment steps in an update, of all GMIs of all devices, that stay the "
        "same: the horizon follows `num_env` and the number of GMIs, from a quarter of its own (8 "
        "at least, or its own) to four times it. `null`: the horizon stays, and the batch follows.",
    )
    gmi_per_gpu: _Counts | None = Field(
        default=None,
        min_length=1,
        description="Numbers of GMIs on a device to try; `null`: 1, 2, 3, 4, 6, 8 and so on, as "
        "far as there are cores, and of these for algorithm `paper` the powers of two.",
    )
    min_num_env: Int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="The smallest `num_env` to try; `null`: 128 on GPUs, 4 on groups of cores.",
    )
    max_num_env: Int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="The largest `num_env` to try; `null`: 65536 on GPUs, 4096 on groups of cores.",
    )

    @field_validator("max_num_env")
    @classmethod
    def _at_least_the_smallest(cls, value: int | None, info: ValidationInfo) -> int | None:
        smallest = info.data.get("min_num_env")
        if value is not None and smallest is not None and value < smallest:
            raise broken(
                f"must be at least min_num_env, {smallest}", "Raise it, or lower the other."
            )
        return value
