"""Runs rounds of rows over two sides, and prints a table of their results."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from report import emit, say
from rows.base import NUM_CPUS, UNITS, Side

Answer = dict[str, Any]  # {"found": {name: value}} or {"error": text}


def compare(
    names: Sequence[str],
    sides: Sequence[Side],
    rounds: int,
    measure: Callable[[Side, str, Path], Answer],
) -> None:
    """Measures every row on every side in turn, round after round, and emits what was found.

    A smoke test only prints the table: its numbers are too small to keep.
    """
    answers: dict[tuple[str, str], list[Answer]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for row in names:
                for side in sides if number % 2 == 0 else reversed(sides):
                    say(f"round {number + 1}/{rounds}  {row}  {side.name}")
                    answer = measure(side, row, Path(folder))
                    if "error" in answer:
                        say(f"    {row} fails on {side.name}: {answer['error']}")
                    answers.setdefault((row, side.name), []).append(answer)
    say(f"\n{'row':52} {'ours':>11} {'ray':>11} unit        ours better by")
    for row in names:
        ours, peer = answers.get((row, "ours"), []), answers.get((row, "ray"), [])
        _report_row(row, ours, peer, keep=not sides[0].quick)


def _report_row(row: str, ours: list[Answer], peer: list[Answer], *, keep: bool) -> None:
    errors = {
        f"{side}_errors": sorted({answer["error"] for answer in answers if "error" in answer})
        for side, answers in (("our", ours), ("peer", peer))
    }
    kinds = dict.fromkeys(kind for answer in ours + peer for kind in answer.get("found", {}))
    for kind in kinds or ["failed"]:
        unit, larger = UNITS.get(kind, ("", True))
        values, peers = _values(ours, kind), _values(peer, kind)
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
                value=_median(values),
                unit=unit,
                peer=_median(peers),
                ratio=ratio,
                repeats=len(ours) or len(peer),
                spread=_range(values),
                peer_spread=_range(peers),
                peer_name=f"ray {version('ray')}",
                num_cpus=NUM_CPUS,
                **{name: texts for name, texts in errors.items() if texts},
            )
        better = "-" if ratio is None else f"{ratio:.1f}x"
        say(
            f"{row + '/' + kind:52} {_text(ours, values)} {_text(peer, peers)} "
            f"{unit:11} {better:>8}"
        )


def _by_round(answers: list[Answer], kind: str) -> list[float | None]:
    return [answer.get("found", {}).get(kind) for answer in answers]


def _values(answers: list[Answer], kind: str) -> list[float]:
    return [value for value in _by_round(answers, kind) if value is not None]


def _median(values: list[float]) -> float | None:
    return float(f"{statistics.median(values):.5g}") if values else None


def _range(values: list[float]) -> list[float] | None:
    return [float(f"{pick(values):.5g}") for pick in (min, max)] if values else None


def _text(answers: list[Answer], values: list[float]) -> str:
    if values:
        return f"{statistics.median(values):11,.4g}"
    return f"{'failed' if answers else '-':>11}"
