"""Defines the settings of IMPALA."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from gmi_drl.placement.config.section import broken

from .common import SegmentsConfig


class IMPALAConfig(SegmentsConfig):
    """Actor-critic with V-trace, which corrects for old experience."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.impala:IMPALA"

    name: Literal["impala"] = "impala"
    rho_clip: float = Field(default=1.0, gt=0)
    """V-trace: truncation of the importance weights; what it learns the value of is nearer to the
    present policy the larger it is."""
    c_clip: float = Field(default=1.0, gt=0, validate_default=True)
    """V-trace: truncation of the weights that pass errors back along a segment; at most `rho_clip`.
    Less is less variance."""

    @field_validator("c_clip")
    @classmethod
    def _at_most_rho_clip(cls, value: float, info: ValidationInfo) -> float:
        rho_clip = info.data.get("rho_clip")
        if rho_clip is not None and value > rho_clip:
            raise broken(f"must be at most rho_clip, {rho_clip:g}", "Lower it, or raise rho_clip.")
        return value
