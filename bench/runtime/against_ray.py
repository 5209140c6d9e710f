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

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rows
from children import answer, ask
from report import parser
from rows.base import Side

SIDES = ("ours", "ray")


def measure_here(side: Side, row: str) -> dict[str, float]:
    """Returns what one row measures in this process."""
    measure = rows.find(row)
    if row in rows.MODULES["system"]:  # these start and end the runtime themselves
        return measure(side)
    with side.running():
        return measure(side)


def measure_in_child(side: Side, row: str) -> dict[str, Any]:
    """Returns the same from a fresh process."""
    return ask(__file__, "--side", side.name, "--rows", row, *["--quick"] * side.quick)


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
    from comparison import compare

    sides = [Side(name, options.quick) for name in options.sides]
    compare(options.rows, sides, options.rounds, measure_in_child)


if __name__ == "__main__":
    main()
