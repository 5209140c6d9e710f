#!/usr/bin/env python3
"""Compares the model of `gmi-drl plan --on` with measurements, and projects the six benchmarks.

Claim: of measurements that the model was not fitted to (an H100, grids and jobs on two cores,
reductions, hosts that are namespaces of one machine, asynchronous training, processes that sleep)
its median error is below 10 %.

In bench/results/scale.json:
    rows         the median errors, of all and of each group
    checks       each measurement, what was foretold, the error, what the model was fitted to
    waits        processes that sleep in place of work; with core_steps all that is measured here
    core_steps   microseconds of an environment's step on one core
    isaac_lab    the published step from one host of 4 L40 to four, for three assumed networks
    paper        GMI-DRL's own figures, from its constants and from this model of 8 A100
    projections  steps/s, efficiency, lag and cost on 1 to 256 hosts: projected, not measured

    bench/scale.py              # all but what is measured, which is kept; minutes, on one core
    bench/scale.py --measure    # two minutes more, on a quiet machine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import scale_checks
import scale_measure
from report import RESULTS, emit, parser, read_results, say, write_results

from gmi_drl.placement import layout_of, load_config
from gmi_drl.selector.forecast.forecast import TRIES, Forecast, forecast, ladder
from gmi_drl.selector.forecast.hardware import machine_of

ROOT: Final = Path(__file__).resolve().parents[1]
_FILE: Final = RESULTS / "scale.json"
_PICTURE: Final = ROOT / "docs" / "scale" / "scale.png"
_MACHINES: Final = ("dgx-a100", "dgx-h100")
_AIM: Final = 0.10
_BENCHMARKS: Final = {  # the paper's six, and the file of each
    "Ant": "ant", "Anymal": "anymal", "BallBalance": "ball_balance",
    "FrankaCabinet": "franka_cabinet",
    "Humanoid": "humanoid", "ShadowHand": "shadow_hand",
}  # fmt: skip
_ASYNC: Final = {  # Ant with six agents and two trainers on each host
    "version": 1, "mode": "async",
    "env": {"id": "Ant-v5", "adapter": "warp", "num_env": 4096},
    "algorithm": {"name": "impala", "network": "ant", "horizon": 16},
    "layout": {"template": "decoupled", "trainer_gpus": 2},
}  # fmt: skip


def projections(hosts: Sequence[int], tries: int) -> list[dict[str, Any]]:
    """Projects every benchmark on every machine, and asynchronous Ant."""
    rows = []
    for machine in _MACHINES:
        for task, file in {**_BENCHMARKS, "Ant, async": None}.items():
            document: Any = _ASYNC
            if file is not None:
                document = ROOT / "examples" / "paper" / f"{file}.yaml"
            config, (hardware, _) = load_config(document), machine_of(machine)
            layout = layout_of(config, hardware.topology())
            _, curve = forecast(config, layout, hardware, hosts, tries)
            rows += [{"machine": machine, "task": task, **_projection(point)} for point in curve]
            largest = curve[-1]
            say(f"{machine} {task}: {largest.hosts} hosts, efficiency {largest.efficiency[1]:.2f}")
    return rows


def _projection(point: Forecast) -> dict[str, Any]:
    """Returns a line of the results."""

    def short(values: Sequence[float]) -> list[float]:
        return [float(f"{value:.4g}") for value in values]

    return {
        "hosts": point.hosts, "gpus": point.gpus,
        "steps_per_s": short(point.steps_per_s), "efficiency": short(point.efficiency),
        "usd_per_billion_steps": short(point.usd_per_billion_steps),
        "lag": None if point.lag is None else short(point.lag),
        "failures_per_day": float(f"{point.failures_per_day:.3g}"),
        "learned": float(f"{point.learned:.3g}"),
        "dominating": point.dominating, "limiting": point.limiting,
        "seconds": {term: float(f"{s:.3g}") for term, s in point.seconds.items() if s},
    }  # fmt: skip


def draw(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draws efficiency, the phases of an iteration on most hosts, and how fast policies learn."""
    from matplotlib.figure import Figure

    machine = "dgx-h100"
    shown = [row for row in rows if row["machine"] == machine]
    tasks = list(dict.fromkeys(row["task"] for row in shown))
    figure = Figure(figsize=(14.5, 5.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    colours = dict(zip(tasks, ("#0072B2", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#56B4E9",
                               "#000000"), strict=True))  # fmt: skip
    for task in tasks:
        line = [row for row in shown if row["task"] == task]
        hosts = [row["hosts"] for row in line]
        low, mid, high = zip(*(row["efficiency"] for row in line), strict=True)
        left.plot(hosts, mid, color=colours[task], label=task, marker="o", markersize=3)
        if task in ("Ant", "BallBalance"):
            left.fill_between(hosts, low, high, color=colours[task], alpha=0.15, linewidth=0)
        if task != "Ant, async":
            learned = [
                row["steps_per_s"][1] * row["learned"] / line[0]["steps_per_s"][1]
                / line[0]["learned"] for row in line
            ]  # fmt: skip
            right.plot(hosts, learned, color=colours[task], marker="o", markersize=3)
            faster = [row["steps_per_s"][1] / line[0]["steps_per_s"][1] for row in line]
            right.plot(hosts, faster, color=colours[task], linewidth=0.8, linestyle=":")
    widest = [row for row in shown if row["hosts"] == max(row["hosts"] for row in shown)]
    terms = list(dict.fromkeys(term for row in widest for term in row["seconds"]))
    offsets = [0.0] * len(widest)
    for number, term in enumerate(terms):
        shares = [row["seconds"].get(term, 0.0) / sum(row["seconds"].values()) for row in widest]
        middle.barh([row["task"] for row in widest], shares, left=offsets, label=term,
                    color=f"C{number}")  # fmt: skip
        offsets = [a + b for a, b in zip(offsets, shares, strict=True)]
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel(f"hosts ({machine}, 8 GPUs each)")
        axes.grid(alpha=0.25)
    left.set_ylim(0, 1.05)
    left.set_title("steps/s of a host over those of the only one\n(p10-p90 of two tasks shaded)")
    left.legend(fontsize=8)
    middle.invert_yaxis()
    middle.set_title(f"where an iteration goes, {widest[0]['hosts']} hosts")
    middle.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3)
    right.set_yscale("log", base=2)
    right.yaxis.set_major_formatter("{x:g}")
    for axes in (left, right):
        axes.xaxis.set_major_formatter("{x:g}")
    right.set_title("over one host: steps/s (dotted), and what\nis learned a second (tuner's rule)")
    figure.suptitle("Projected, not measured")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=70)


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("--measure", action="store_true", help="measure the two anew")
    options_of.add_argument("--iterations", type=int, default=60, help="of sleepers, each")
    options_of.add_argument("--hosts", type=int, default=256, help="project up to so many")
    options_of.add_argument("--tries", type=int, default=TRIES, help="of each projection")
    options = options_of.parse_args()
    document = read_results(_FILE)
    if options.measure:
        document["core_steps"] = scale_measure.core_steps()
        document["waits"] = scale_measure.waits(options.iterations)
        write_results(_FILE, document)
    settings = {"rollout_s": scale_measure.ROLLOUT_S, "step_s": scale_measure.STEP_S,
             "steps": scale_measure.STEPS, "nbytes": scale_measure.NBYTES}  # fmt: skip
    checks = [
        *scale_checks.h100_rows(), *scale_checks.core_rows(), *scale_checks.reduction_rows(),
        *scale_checks.host_rows(), *scale_checks.template_rows(),
        *scale_checks.wait_rows(document.get("waits", []), settings),
    ]  # fmt: skip
    document |= {
        "checks": checks,
        "isaac_lab": scale_checks.isaac_lab(),
        "paper": scale_checks.paper(),
        "projections": projections(ladder(options.hosts), options.tries),
    }
    write_results(_FILE, document)
    errors = scale_checks.summary(checks)
    medians = {"median": errors["median_of_group_medians"], "rows": len(errors["groups"]),
               "largest": max(group["median"] for group in errors["groups"].values())}  # fmt: skip
    for name, group in {"all": errors, "medians of groups": medians, **errors["groups"]}.items():
        emit(
            "scale", f"error/{name}", value=round(100 * group["median"], 2), unit="%",
            peer=100 * _AIM, ratio=_AIM / group["median"], repeats=group["rows"],
            spread=[0.0, round(100 * group["largest"], 2)],
        )  # fmt: skip
    draw(document["projections"], _PICTURE)
    say(f"{_FILE}, {_PICTURE}")


if __name__ == "__main__":
    main()
