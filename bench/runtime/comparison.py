"""Runs rounds of rows over two sides, and emits their results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from report import emit, ratios_of, say
from rows.base import NUM_CPUS, UNITS, Side

Answer = dict[str, Any]  # {"found": {name: value}} or {"error": text}


def compare(
    names: Sequence[str],
    sides: Sequence[Side],
    rounds: int,
    measure: Callable[[Side, str], Answer],
) -> None:
    """Measures every row on every side in turn, round after round, and emits what was found.

    The rows of a smoke test are only printed: its numbers are too small to keep.
    """
    answers: dict[tuple[str, str], list[Answer]] = {}
    for number in range(rounds):
        for row in names:
            for side in sides if number % 2 == 0 else reversed(sides):
                say(f"round {number + 1}/{rounds}  {row}  {side.name}")
                answer = measure(side, row)
                if "error" in answer:
                    say(f"    {row} fails on {side.name}: {answer['error']}")
                answers.setdefault((row, side.name), []).append(answer)
    for row in names:
        ours, peer = answers.get((row, "ours"), []), answers.get((row, "ray"), [])
        _report_row(row, ours, peer, keep=not sides[0].quick)


def _report_row(row: str, ours: list[Answer], peer: list[Answer], *, keep: bool) -> None:
    errors = {
        f"{side}_errors": sorted(texts)
        for side, answers in (("our", ours), ("peer", peer))
        if (texts := {answer["error"] for answer in answers if "error" in answer})
    }
    kinds = dict.fromkeys(kind for answer in ours + peer for kind in answer.get("found", {}))
    for kind in kinds or ["failed"]:
        unit, larger = UNITS.get(kind, ("", True))
        rounds = [[a.get("found", {}).get(kind) for a in answers] for answers in (ours, peer)]
        values, peers = ([v for v in found if v is not None] for found in rounds)
        pairs = [(a, b) for a, b in zip(*rounds, strict=False) if a and b]
        ratios = ratios_of(*zip(*pairs, strict=True), not larger) if pairs else []
        emit(
            "runtime_against_ray", f"{row}/{kind}", value=_median(values), unit=unit,
            peer=_median(peers), ratio=statistics.median(ratios) if ratios else None,
            repeats=len(ours) or len(peer), spread=_range(values), peer_spread=_range(peers),
            peer_name=f"ray {version('ray')}", num_cpus=NUM_CPUS, dry=not keep, **errors,
        )  # fmt: skip


def _median(values: list[float]) -> float | None:
    return float(f"{statistics.median(values):.5g}") if values else None


def _range(values: list[float]) -> list[float] | None:
    return [float(f"{pick(values):.5g}") for pick in (min, max)] if values else None
