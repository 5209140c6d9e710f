"""Moves experience from agents to trainers: dispatcher, compressor, migrator, batcher (2206.08482).

Importing this imports no torch; the names that need it are loaded when asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .choose import LinkCost, choose_grouping, measure_cost, project
from .counts import BatchCounts, DispatchCounts
from .migrator import Migrator, Route, SegmentId
from .schema import Channel, Grouping, Schema, Stream, joined, mcc, ucc

if TYPE_CHECKING:
    from .batcher import Batcher, BatchSlice, ExperienceBatch
    from .compressor import Compressor
    from .dispatcher import Dispatcher

_LATER = dict.fromkeys(("Batcher", "BatchSlice", "ExperienceBatch"), ".batcher")
_LATER |= {"Compressor": ".compressor", "Dispatcher": ".dispatcher"}

__all__ = [
    "BatchCounts", "BatchSlice", "Batcher", "Channel", "Compressor", "DispatchCounts", "Dispatcher",
    "ExperienceBatch", "Grouping", "LinkCost", "Migrator", "Route", "Schema", "SegmentId",
    "Stream", "choose_grouping", "joined", "mcc", "measure_cost", "project", "ucc",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
