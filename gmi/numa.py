"""Reads the NUMA nodes of this machine, as Linux lists them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NODES: Final = Path("/sys/devices/system/node")


def nodes() -> dict[int, frozenset[int]]:
    """Returns the cores of each node; empty where the system has no such thing."""
    cores_of = {}
    for path in _NODES.glob("node[0-9]*"):
        try:
            cores_of[int(path.name[4:])] = frozenset(_parsed((path / "cpulist").read_text()))
        except (OSError, ValueError):
            continue
    return cores_of


def _parsed(text: str) -> Iterator[int]:
    """Reads 0-3,8 as 0, 1, 2, 3, 8."""
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)
