"""Keeps the finished cells of the learning benchmark in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import read_results, write_results


@dataclass(frozen=True, order=True)
class Cell:
    """One training run: a task, a seed, a system."""

    task: str
    seed: int
    system: str  # ours | sb3

    def __str__(self) -> str:
        return f"{self.task} seed {self.seed} {self.system}"


def cell_of(record: dict[str, Any]) -> Cell:
    """Returns the cell that a record is of."""
    return Cell(record["task"], record["seed"], record["system"])


class Cells:
    """Keeps finished cells on disk; every change is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[Cell, dict[str, Any]] = {}
        for record in read_results(path).get("cells", []):
            self.records[cell_of(record)] = record

    def add(self, record: dict[str, Any]) -> None:
        """Keeps this record, in place of an older one of the same cell."""
        self.records[cell_of(record)] = record
        cells = [self.records[cell] for cell in sorted(self.records)]
        write_results(self.path, read_results(self.path) | {"cells": cells})

    def of(self, task: str, system: str) -> list[dict[str, Any]]:
        """Returns the records of one task and system, by seed."""
        return [
            self.records[cell]
            for cell in sorted(self.records)
            if cell.task == task and cell.system == system
        ]


def thinned(curve: list[tuple[int, float]], points: int = 500) -> list[tuple[int, float]]:
    """Returns every n-th point of a curve, and its last, so that there are about `points`."""
    stride = max(1, len(curve) // points)
    return [*curve[:-1][::stride], *curve[-1:]]


def evaluations(records: list[dict[str, Any]]) -> list[float]:
    """Returns the mean evaluation return of each record."""
    return [float(record["evaluation"]["mean"]) for record in records]


def training_returns(records: list[dict[str, Any]]) -> list[float]:
    """Returns the mean return of the last 100 training episodes of each record."""
    return [float(record["curve"][-1][1]) for record in records if record["curve"]]
