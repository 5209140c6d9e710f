"""Runs rounds of rows over two sides, and prints the table that comes of them."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from report import emit, say
from rows.base import NUM_CPUS, UNITS, Side

Found = dict[str, Any]  # {"found": {name: value}} or {"error": text}


def compare(
    names: Sequence[str],
    sides: Sequence[Side],
    rounds: int,
    measure: Callable[[Side, str, Path], Found],
) -> None:
    """Measures every row on every side in turn, round after round, and emits what was found.

    Of a smoke test only the table is shown: its numbers are too small to keep.
    """
    found: dict[tuple[str, str], list[Found]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for row in names:
                for side in sides if number % 2 == 0 else reversed(sides):
                    say(f"round {number + 1}/{rounds}  {row}  {side.name}")
                    one = measure(side, row, Path(folder))
                    if "error" in one:
                        say(f"    {row} fails on {side.name}: {one['error']}")
                    found.setdefault((row, side.name), []).append(one)
    say(f"\n{'row':52} {'ours':>11} {'ray':>11} unit        ours better by")
    for row in names:
        ours, peer = found.get((row, "ours"), []), found.get((row, "ray"), [])
        _report_row(row, ours, peer, keep=not sides[0].quick)


def _report_row(row: str, ours: list[Found], peer: list[Found], *, keep: bool) -> None:
    errors = {
        f"{who}_errors": sorted({one["error"] for one in found if "error" in one})
        for who, found in (("our", ours), ("peer", peer))
    }
    kinds = dict.fromkeys(kind for one in ours + peer for kind in one.get("found", {}))
    for kind in kinds or ["failed"]:
        unit, larger = UNITS.get(kind, ("", True))
        mine, theirs = _values(ours, kind), _values(peer, kind)
        ratios = [
            (a / b if larger else b / a)
            for a, b in zip(_by_round(ours, kind), _by_round(peer, kind), strict=False)
            if a and b
        ]
        ratio = statistics.median(ratios) if ratios else None
        if keep:
            emit(
                "runtime_against_ray",
                f"{row}/{kind}",
                value=_median(mine),
                unit=unit,
                peer=_median(theirs),
                ratio=ratio,
                repeats=len(ours) or len(peer),
                spread=_range(mine),
                peer_spread=_range(theirs),
                peer_name=f"ray {version('ray')}",
                num_cpus=NUM_CPUS,
                **{name: texts for name, texts in errors.items() if texts},
            )
        better = "-" if ratio is None else f"{ratio:.1f}x"
        say(
            f"{row + '/' + kind:52} {_text(ours, mine)} {_text(peer, theirs)} {unit:11} {better:>8}"
        )


def _by_round(found: list[Found], kind: str) -> list[float | None]:
    return [one.get("found", {}).get(kind) for one in found]


def _values(found: list[Found], kind: str) -> list[float]:
    return [value for value in _by_round(found, kind) if value is not None]


def _median(values: list[float]) -> float | None:
    return float(f"{statistics.median(values):.5g}") if values else None


def _range(values: list[float]) -> list[float] | None:
    return [float(f"{pick(values):.5g}") for pick in (min, max)] if values else None


def _text(found: list[Found], values: list[float]) -> str:
    if values:
        return f"{statistics.median(values):11,.4g}"
    return f"{'failed' if found else '-':>11}"
