#!/usr/bin/env python3
"""Measures what the ranges of a profile cost a run that is not profiled (docs/profiling.md).

Claim: a thousandth of a cheap step, that of eight CartPoles.

Row `phases/off`: nanoseconds of entering and leaving a range, beside those of such a step; the
ratio is a step over a range.

    bench/phases.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import torch
from report import emit_pairs, parser

from gmi_drl.roles.envs import make_env
from gmi_drl.roles.telemetry.phases import phase

_ROUNDS: Final = 9
_RANGES, _STEPS = 200_000, 2_000  # of a round


def ranges() -> None:
    simulating = phase("simulate")
    for _ in range(_RANGES):
        with simulating:
            pass


def nanoseconds(run: Callable[[], None], times: int) -> float:
    begun_ns = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begun_ns) / times


def main() -> None:
    torch.set_num_threads(1)
    env = make_env("CartPole-v1", 8)
    env.reset()
    action = torch.zeros(8, dtype=torch.int64)

    def steps() -> None:
        for _ in range(_STEPS):
            env.step(action)

    steps()
    pairs = [(nanoseconds(ranges, _RANGES), nanoseconds(steps, _STEPS)) for _ in range(_ROUNDS)]
    range_ns, step_ns = zip(*pairs, strict=True)
    emit_pairs("phases", "off", "ns", range_ns, step_ns, smaller_is_better=True)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
