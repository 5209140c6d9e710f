"""Keeps a suite's results in one file, and decides which of them can be compared.

A ratio is of two cells of the same suite, which have machine, source, versions, settings and file
in common. Any other pair is refused, whatever its numbers. The choice of cells does not count:
commands for other experiments or other numbers of environments or GMIs add to the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import report

from .stage import Stage

ROOT: Final = Path(__file__).resolve().parents[3]
DRY_NOTE: Final = "CPU cores, no GPU figure: shows that the suite works, and says nothing of a GPU"
_SOURCES: Final = ("src", "gmi", "comm", "placement", "roles", "selector", "runtime", "bench/gpu")
_PACKAGES: Final = (
    "torch", "numpy", "gymnasium", "warp-lang", "mujoco-warp", "mujoco", "mujoco-mjx", "jax",
    "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "cuda-bindings", "cupy-cuda13x",
    "nvidia-ml-py",
)  # fmt: skip
Record = Mapping[str, Any]


class MixedSuites(ValueError):
    """The two sides of a comparison belong to different suites."""


class NotASuite(ValueError):
    """A file is not the complete results of a suite."""


def ratio(ours: Record, theirs: Record, key: str) -> float:
    """Returns ours over theirs; MixedSuites if they are not of the same suite."""
    if ours["suite"] != theirs["suite"]:
        raise MixedSuites(
            f"{ours['key']} is of suite {ours['suite']}, {theirs['key']} of {theirs['suite']}: "
            "a ratio needs both in one suite (same machine, source, versions, settings). "
            "Run both with one command."
        )
    return float(ours[key]) / float(theirs[key])


def source_digest(root: Path = ROOT) -> str:
    """Digests all code that a cell runs, committed or not, and the models that it simulates.

    Another digest is another suite.
    """
    digest = hashlib.sha256()
    for name in _SOURCES:
        files = (path for path in (root / name).rglob("*") if path.suffix in (".py", ".xml"))
        for path in sorted(files):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def identity(stage: Stage, machine: Sequence[str]) -> dict[str, Any]:
    """Returns what identifies a suite; results of different suites are not compared.

    `machine` has what `report.machine` does not, such as the GPUs' driver.
    """
    versions = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    head = {
        "machine": ", ".join([report.machine(), *machine]),
        "source": source_digest(),
        "versions": versions,
        "stage": json.loads(json.dumps(stage.settings)),
    }
    fixed = head | {"machine": [report.machine(memory=False), *machine]}
    number = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:12]
    head["stage"]["unusable"] = dict(stage.unusable)
    return {"suite": number, **head}


class Store:
    """Keeps the cells of one suite by key, in a file that always has all finished ones."""

    def __init__(self, path: Path, head: Mapping[str, Any], kept: Path | None = None) -> None:
        self.path, self.head = path, dict(head)
        # Where this suite's cells write what they can resume from.
        self.kept = (kept or path.parent / ".kept") / str(head["suite"])
        self.records: dict[str, dict[str, Any]] = {}
        self.not_run: list[dict[str, str]] = []

    @classmethod
    def read(cls, path: Path, kept: Path | None = None) -> Store:
        """Reads a stored suite; NotASuite, or MixedSuites if it has cells of another one."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            store, cells = cls(path, document["head"], kept), document["cells"]
            store.not_run = document["not_run"]
        except (OSError, KeyError, TypeError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise NotASuite(
                f"{path} is not a suite's results: {reason}. Name the suite.json of a suite that "
                "ran, or take this one away."
            ) from error
        for record in cells:
            if record["suite"] != store.head["suite"]:
                raise MixedSuites(
                    f"{path}: {record['key']} is of suite {record['suite']}, the file of "
                    f"{store.head['suite']}; cells of different runs are not compared. Take it out."
                )
            store.records[record["key"]] = record
        return store

    @classmethod
    def open(
        cls, path: Path, suite: Mapping[str, Any], kept: Path | None = None
    ) -> tuple[Store, str]:
        """Returns the suite with this identity, resumed if `path` has it, and a message on that.

        Another suite's file is kept beside it under its own number, and restored when that suite
        is asked for.
        """
        note = {"note": DRY_NOTE} if suite["stage"]["kind"] == "cpu" else {}
        head = {**note, **suite, "commit": report.commit(), "began": report.utc_now()}
        if not path.exists():
            return cls(path, head, kept), ""
        store = cls.read(path, kept)
        number = store.head["suite"]
        if number == suite["suite"]:
            store.head["stage"] = head["stage"]  # `unusable` may have changed since
            return store, f"going on with suite {number}: {len(store.records)} cells are there"
        other, own = (path.with_name(f"{path.stem}-{n}.json") for n in (number, suite["suite"]))
        path.replace(other)
        message = f"another suite (code, versions or settings) is now {other.name}"
        if own.exists():
            own.replace(path)
            return cls.read(path, kept), f"{message}; going on with suite {suite['suite']}"
        return cls(path, head, kept), message

    def take(self, path: Path) -> str:
        """Takes in the cells of an earlier file that are missing here, and returns a message."""
        other = Store.read(path)
        if other.head["suite"] != self.head["suite"]:
            return (
                f"{path} is left alone: it is of suite {other.head['suite']} (other machine, "
                f"code, versions or settings), and this is suite {self.head['suite']}"
            )
        new = {key: record for key, record in other.records.items() if key not in self.records}
        self.records |= new
        return f"{len(new)} cells of {path} are taken in"

    def add(self, record: Mapping[str, Any]) -> None:
        """Keeps a finished cell."""
        self.records[record["key"]] = {"suite": self.head["suite"], **record}
        self.write()

    def write(self) -> None:
        """Replaces the file atomically; see `report.keep`."""
        lines = ",\n".join(json.dumps(record) for record in self.records.values())
        head, not_run = json.dumps(self.head, indent=1), json.dumps(self.not_run, indent=1)
        text = f'{{"head": {head},\n"cells": [\n{lines}\n],\n"not_run": {not_run}\n}}\n'
        report.keep(self.path, text)
