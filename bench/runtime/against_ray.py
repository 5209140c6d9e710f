#!/usr/bin/env python3
"""Measures the task runtime beside the real Ray: every row on both sides in one run.

Claim: an order of magnitude quicker than Ray on one host. Each row is written once (bench/runtime/
rows/) and run by both sides with the same code, each time in a fresh process, on two CPUs; the
sides take turns within a round, in the opposite order in each next round. A row's value is
the median over rounds, its ratio the median over rounds of the ratio within a round.

Needs the extra [bench]. Rows and what they measure: see bench/runtime/rows/. A row that fails is
reported with its error.

    bench/runtime/against_ray.py --rounds 5
    bench/runtime/against_ray.py --rows actor_round_trip rl_loop --rounds 3
    bench/runtime/against_ray.py --quick --rounds 1        # a smoke test
"""

from __future__ import annotations

import argparse
import statistics
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rows
from children import answer, ask
from report import emit, parser, ratios_of, say
from rows.base import NUM_CPUS, UNITS, Side

SIDES = ("ours", "ray")
Answer = dict[str, Any]  # {"found": {name: value}} or {"error": text}


def measure_here(side: Side, row: str) -> dict[str, float]:
    """Returns what one row measures in this process."""
    measure = rows.find(row)
    if row in rows.MODULES["system"]:  # these start and end the runtime themselves
        return measure(side)
    with side.running():
        return measure(side)


def compare(options: argparse.Namespace) -> None:
    """Measures every row on every side in turn, round after round, and emits what was found.

    The rows of a smoke test are only printed: its numbers are too small to keep.
    """
    answers: dict[tuple[str, str], list[Answer]] = {}
    for number in range(options.rounds):
        for row in options.rows:
            for name in options.sides if number % 2 == 0 else reversed(options.sides):
                say(f"round {number + 1}/{options.rounds}  {row}  {name}")
                command = [__file__, "--side", name, "--rows", row]
                found = ask(*command, *["--quick"] * options.quick)
                if "error" in found:
                    say(f"    {row} fails on {name}: {found['error']}")
                answers.setdefault((row, name), []).append(found)
    for row in options.rows:
        ours, peer = (answers.get((row, name), []) for name in SIDES)
        _report_row(row, ours, peer, keep=not options.quick)


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
            peer_name=f"ray {version('ray')}" if peer else None, num_cpus=NUM_CPUS,
            dry=not keep, **errors,
        )  # fmt: skip


def _median(values: list[float]) -> float | None:
    return float(f"{statistics.median(values):.5g}") if values else None


def _range(values: list[float]) -> list[float] | None:
    return [float(f"{pick(values):.5g}") for pick in (min, max)] if values else None


def main() -> None:
    options_of = parser(__doc__, rounds=5)
    add = options_of.add_argument
    add("--rows", nargs="+", default=list(rows.NAMES), metavar="ROW")
    add("--quick", action="store_true", help="small numbers: a smoke test")
    add("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    add("--side", choices=SIDES, help="one row, in this process, whose answer is printed")
    options = options_of.parse_args()
    if options.side is not None:
        side = Side(options.side, options.quick)
        answer(lambda: measure_here(side, options.rows[0]))
        return
    for row in options.rows:
        rows.find(row)
    compare(options)


if __name__ == "__main__":
    main()
