"""Defines the settings of A3C."""

from __future__ import annotations

from typing import Literal

from .common import SegmentsConfig


class A3CConfig(SegmentsConfig):
    """Actor-critic without correction for old experience."""

    name: Literal["a3c"] = "a3c"
