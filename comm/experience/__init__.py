"""Moves experience from agents to trainers: dispatcher, compressor, migrator, batcher (2206.08482).

Importing this imports no torch; the names that need it are loaded when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gmi_drl.lazy import lazy

from .choose import LinkCost, choose_grouping, measure_cost, project
from .counts import BatchCounts, DispatchCounts
from .migrator import Migrator, Route, SegmentId
from .schema import Channel, Grouping, Schema, Stream, joined, mcc, ucc

if TYPE_CHECKING:
    from .batcher import Batcher, BatchSlice, ExperienceBatch
    from .compressor import Compressor
    from .dispatcher import Dispatcher

__getattr__, __dir__ = lazy(
    __name__,
    {
        ".batcher": ["BatchSlice", "Batcher", "ExperienceBatch"],
        ".compressor": ["Compressor"],
        ".dispatcher": ["Dispatcher"],
    },
)

__all__ = [
    "BatchCounts", "BatchSlice", "Batcher", "Channel", "Compressor", "DispatchCounts", "Dispatcher",
    "ExperienceBatch", "Grouping", "LinkCost", "Migrator", "Route", "Schema", "SegmentId",
    "Stream", "choose_grouping", "joined", "mcc", "measure_cost", "project", "ucc",
]  # fmt: skip
