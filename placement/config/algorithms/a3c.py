"""Defines the settings of A3C."""

from __future__ import annotations

from typing import ClassVar, Literal

from .common import SegmentsConfig


class A3CConfig(SegmentsConfig):
    """Actor-critic without correction for old experience."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.a3c:A3C"

    name: Literal["a3c"] = "a3c"
