#!/usr/bin/env python3
"""Checks a border that is real: two GMIs on two cores pay for one network, not for another.

An update with a small network is mostly work that one thread does, and two GMIs do it in parallel.
With a wide one it is mostly matrix products, which fill both cores of one process, while two GMIs
have a gradient of many megabytes to reduce after every minibatch.

Claim: `gmi-drl tune`, asked for the same environment with both networks, chooses two GMIs for the
one and one for the other, and the choice is right: what is best of the other number of GMIs, by its
own measurements, is slower when both are measured again in turn.

Rows `border/cores-<network>`: value steps/s of the choice, peer those of the other, ratio the
median over rounds of both in a round; `phases` of both say why. Exit code 1 where a choice is wrong
by more than 2 %, or both are of the same number of GMIs.

    bench/selector/border_cores.py --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from grid import Rates, Stage, confirm, nothing_cached, two_cores
from report import emit, parser, ratios_of, say, spread_of

from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.placement import Config, load_config
from gmi_drl.selector.record import record
from gmi_drl.selector.record.results import CandidateResult
from gmi_drl.selector.tune.candidate import Candidate
from gmi_drl.selector.tune.profile.profiler import Profiler
from gmi_drl.selector.tune.space import space_of
from gmi_drl.selector.tune.tuning import tune

NETWORKS: Final = {"small": [64, 64], "wide": [2048, 2048]}
_WRONG: Final = 0.98


def job_of(network: str, most: int, budget_s: float) -> Config:
    """Returns a job with num_env and GMIs open, and at most `most` environments in all."""
    horizon = 16
    return load_config(
        {
            "version": 1,
            # The largest batch that is tried is that of a run of twenty updates.
            "run": {"name": "border", "total_steps": 20 * horizon * most},
            "env": {"id": "CartPole-v1", "num_env": "auto"},
            "algorithm": {"network": NETWORKS[network], "horizon": horizon, "minibatches": 4},
            "hardware": {"backend": "cpu", "num_gpus": 1, "cores": two_cores()},
            "layout": {"template": "tcg_ex", "gmi_per_gpu": "auto"},
            "tune": {
                "objective": "steps", "keep": "none",
                "budget_s": budget_s, "min_num_env": 16, "max_num_env": most, "gmi_per_gpu": [1, 2]
            },
        }
    )  # fmt: skip


def measure(network: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Measures the row of a network; None when there was nothing to compare."""
    config = job_of(network, options.most, options.budget)
    say(f"{network}: tune")
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as folder:
        result = tune(config, output=Path(folder) / "tuned.yaml", again=True, view="none")
        findings = record.read(result.record).results()
    best = best_of(findings.all)
    chosen, peer = result.chosen.winner, best.get(3 - result.chosen.winner.row.gmi_per_gpu)
    if peer is None:
        say(f"{network}: the budget held no measurement of the other number of GMIs")
        return None
    space, _ = space_of(config, find_devices(config))
    stage = Stage(network, Profiler(config), space, options.minutes)
    rates = confirm([chosen, peer.candidate], options.seconds, options.rounds, stage)
    if not rates[chosen]:
        say(f"{network}: not one round was ended by both; give it more --minutes")
        return None
    chosen_finding = next(finding for finding in findings.all if finding.candidate == chosen)
    return row_of(network, rates, chosen_finding, peer)


def best_of(findings: Sequence[CandidateResult]) -> dict[int, CandidateResult]:
    """Returns the fastest of each number of GMIs."""
    fastest: dict[int, CandidateResult] = {}
    for finding in findings:
        g = finding.candidate.row.gmi_per_gpu
        fastest[g] = max(
            fastest.get(g, finding), finding, key=lambda result: result.measured.steps_per_s
        )
    return fastest


def row_of(
    network: str, rates: Rates, own: CandidateResult, other: CandidateResult
) -> dict[str, Any]:
    """Compares what was chosen with the best of the other number of GMIs."""

    def setting(candidate: Candidate) -> dict[str, int]:
        return {"gmi_per_gpu": candidate.row.gmi_per_gpu, "num_env": candidate.num_env}

    chosen_rates, other_rates = rates[own.candidate], rates[other.candidate]
    ratios = ratios_of(chosen_rates, other_rates)
    return {
        "name": f"border/cores-{network}", "value": round(statistics.median(chosen_rates), 1),
        "unit": "steps/s", "peer": round(statistics.median(other_rates), 1),
        "ratio": statistics.median(ratios), "repeats": len(chosen_rates),
        "spread": spread_of(chosen_rates), "ratio_spread": spread_of(ratios, 4),
        "network": NETWORKS[network], "chosen": setting(own.candidate),
        "other": setting(other.candidate), "phases": dict(own.measured.phases),
        "other_phases": dict(other.measured.phases),
    }  # fmt: skip


def holds(rows: Sequence[dict[str, Any]]) -> bool:
    """Tells whether each choice is right, and there is a border between them."""
    counts = {row["chosen"]["gmi_per_gpu"] for row in rows}
    return counts == {1, 2} and all(row["ratio"] >= _WRONG for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures both networks; returns 1 if the claim does not hold."""
    options_of = parser(__doc__)
    add = options_of.add_argument
    add("--rounds", type=int, default=5, help="of measuring both again")
    add("--seconds", type=float, default=4.0, help="of one in a round")
    add("--budget", type=float, default=60.0, help="seconds of each tune")
    add("--minutes", type=float, default=5.0, help="of one network's rounds")
    add("--most", type=int, default=256, help="environments in all")
    options = options_of.parse_args(arguments)
    with nothing_cached():
        rows = [row for network in NETWORKS if (row := measure(network, options)) is not None]
    for row in rows:
        emit("selector", **row)
        say(
            f"{row['name']}: chose {row['chosen']}, {row['ratio']:.2f} times {row['other']} "
            f"({row['ratio_spread'][0]:.2f} to {row['ratio_spread'][1]:.2f})"
        )
    return 0 if holds(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
