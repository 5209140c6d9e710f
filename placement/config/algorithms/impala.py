"""Defines the settings of IMPALA and APPO, which correct for old experience by V-trace."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from gmi_drl.placement.config.section import Int, broken

from .actor_critic import SegmentsConfig


class VTraceConfig(SegmentsConfig):
    """The keys of algorithms that correct for old experience by V-trace."""

    rho_clip: float = Field(default=1.0, gt=0)
    """V-trace: truncation of the importance weights; what it learns the value of is nearer to the
    present policy the larger it is."""
    c_clip: float = Field(default=1.0, gt=0, validate_default=True)
    """V-trace: truncation of the weights that pass errors back along a segment; at most `rho_clip`.
    Less is less variance."""

    @field_validator("c_clip")
    @classmethod
    def _check_c_clip(cls, value: float, info: ValidationInfo) -> float:
        rho_clip = info.data.get("rho_clip")
        if rho_clip is not None and value > rho_clip:
            raise broken(f"must be at most rho_clip, {rho_clip:g}", "Lower it, or raise rho_clip.")
        return value


class IMPALAConfig(VTraceConfig):
    """Actor-critic with V-trace, which corrects for old experience."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.impala:IMPALA"

    name: Literal["impala"] = "impala"


class APPOConfig(VTraceConfig):
    """PPO on experience that agents send meanwhile, corrected by V-trace."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.appo:APPO"

    name: Literal["appo"] = "appo"
    epochs: Int = Field(default=2, ge=1)
    clip: float = Field(default=0.2, gt=0)
    """Clip range of the ratio to the policy that sampled."""
