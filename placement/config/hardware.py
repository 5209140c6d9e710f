"""Defines the config's section `hardware`."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, field_validator

from .section import Cores, Int, Section, broken

MAX_OVERCOMMIT: Final = 60  # as many as MPS takes clients of a device, from CUDA 13.1 on


class HardwareConfig(Section):
    """The devices to use, and how GMIs share them."""

    backend: Literal["auto", "cpu", "direct", "mps", "mig", "green"] = Field(
        default="auto",
        description="`cpu`: a device is a group of cores, a GMI a share of them; `direct`: "
        "processes share a GPU without limits; `mps`: with limits on its SMs and memory, by "
        "NVIDIA's multi-process service; `mig`: each GMI in a MIG instance; `green`: the GMIs of a "
        "GPU are threads of one process, each on SMs of its own; `auto`: what suits the mode and "
        "the GPUs, `cpu` without one.",
    )
    allow_create: bool = Field(
        default=False,
        description="Backend `mig`: make the MIG instances that are missing, and remove them "
        "after the run. Needs root, and GPUs that nobody uses.",
    )
    sm_overcommit: float = Field(
        default=1.0,
        ge=1,
        le=MAX_OVERCOMMIT,
        description="Backend `mps`: the shares of a device's GMIs add up to so many times its SMs. "
        "Above 1 a GMI takes what its neighbours leave idle; NVIDIA suggests 2. As many as there "
        "are GMIs, or more: each may use all SMs.",
    )
    num_gpus: Int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Devices to use: GPUs, or groups of cores when there is none. `null`: all "
        "GPUs, or one group of all cores.",
    )
    cores: Cores | None = Field(
        default=None,
        min_length=1,
        description="CPU cores to use; `null`: all this process may use.",
    )

    @field_validator("cores")
    @classmethod
    def _distinct(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise broken("names a core twice", "Name each core once.")
        return value
