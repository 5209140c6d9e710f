"""Defines the config's section `tune`: how what says `auto` is found."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from .section import Int, Seconds, Section, as_tuple, broken

_Counts = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], BeforeValidator(as_tuple)]


class TuneConfig(Section):
    """How `gmi-drl tune` finds `num_env` and `gmi_per_gpu`."""

    objective: Literal["learning", "steps"] = "learning"
    """`learning`: the shortest time to a return, by throughput, by what an update of its size
    learns of a sample, and by races where these do not decide; `steps`: the most environment steps
    a second, whatever is learned (mode serving always has this)."""
    keep: Literal["update", "gradient_steps", "none"] = "update"
    """What stays as the config has it where `num_env` and the number of GMIs change. `update`: the
    samples of an update and of a minibatch; the horizon follows. `gradient_steps`: the horizon and
    the samples of a minibatch; their number follows. `none`: the horizon and the number of
    minibatches, so that updates grow, which may learn slower."""
    algorithm: Literal["default", "paper"] = "default"
    """How it searches. `paper`: GMI-DRL's Algorithm 2; `default`: more kinds of candidates, by
    fewer measurements."""
    budget_s: Seconds = Field(default=300.0, gt=0)
    """Seconds that tuning may take, all in all; or a time as `5m` or `1h30m`."""
    race_s: Seconds | None = Field(default=None, ge=0)
    """Seconds of the budget that learning races may take, less than all of it; 0: no races. `null`:
    half of the budget, where the prediction is unsure."""
    batch: Int | None = Field(default=None, ge=1)
    """The samples of an update that `keep: update` keeps, of all GMIs of all devices; `null`: the
    config's own."""
    gmi_per_gpu: _Counts | None = Field(default=None, min_length=1)
    """Numbers of GMIs on a device to try; `null`: 1, 2, 3, 4, 6, 8 and so on, as far as there are
    cores, and of these for algorithm `paper` the powers of two."""
    min_num_env: Int | None = Field(default=None, ge=1, le=1_000_000)
    """The smallest `num_env` to try; `null`: 128 on GPUs, 4 on groups of cores."""
    max_num_env: Int | None = Field(default=None, ge=1, le=1_000_000)
    """The largest `num_env` to try; `null`: 65536 on GPUs, 4096 on groups of cores."""

    @field_validator("race_s")
    @classmethod
    def _check_race_s(cls, value: float | None, info: ValidationInfo) -> float | None:
        budget_s = info.data.get("budget_s")
        if value is not None and budget_s is not None and value >= budget_s:
            raise broken(
                f"must be less than budget_s, {budget_s:g}", "Lower it, or raise the budget."
            )
        return value

    @field_validator("batch")
    @classmethod
    def _check_batch(cls, value: int | None, info: ValidationInfo) -> int | None:
        keep = info.data.get("keep")
        if value is not None and keep not in ("update", None):
            raise broken(
                f"says what keep: update keeps, and keep is {keep}", "Leave one of them out."
            )
        return value

    @field_validator("max_num_env")
    @classmethod
    def _check_max_num_env(cls, value: int | None, info: ValidationInfo) -> int | None:
        smallest = info.data.get("min_num_env")
        if value is not None and smallest is not None and value < smallest:
            raise broken(
                f"must be at least min_num_env, {smallest}", "Raise it, or lower the other."
            )
        return value
