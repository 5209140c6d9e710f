#!/usr/bin/env python3
"""Makes figure 10 of the GMI-DRL paper again: throughput and memory against num_env.

The paper's figure is of an A100 that also simulates; ours is of two CPU cores (MuJoCo), where a GMI
is a share of the cores: the same question, but the numbers are not comparable.
Points come from the rows `real/<task>` that grid.py has kept. Marked: where throughput has
saturated (nothing larger is 5 % faster), and where Algorithm 2 stops (Sat below 0.1, on powers of
two).

Rows: `figure10/<task>`: value steps/s where the best row has saturated, `first` what its fewest
environments reach; all points. There is no peer. The picture goes to docs/tuning/.

    bench/selector/figure10.py                       # draws what grid.py has measured
    bench/selector/figure10.py --tasks cartpole --dry --pictures /tmp/pictures
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from grid import TASKS
from report import RESULTS, emit, parser, rows_of, save_picture, say

from gmi_drl.selector.plots.tune_picture import INK, PALE, pens_of
from gmi_drl.selector.record.results import CandidateResult, TuneResults, results_of
from gmi_drl.selector.tune.algorithms.observations import sat
from gmi_drl.selector.tune.algorithms.paper import ALPHA
from gmi_drl.selector.tune.candidate import Ask, Candidate, DeviceSplit, Failed, Measured

_PICTURES: Final = Path(__file__).resolve().parents[2] / "docs" / "tuning"
_DEFAULT: Final = ("ant", "humanoid")


def findings(points: Sequence[Mapping[str, Any]]) -> TuneResults:
    """Returns the points of grid.py as the report has them."""
    names = {field.name for field in fields(Measured)}
    profiles = []
    for entry in points:
        candidate = Candidate(DeviceSplit(entry["gmi_per_gpu"], "cpu"), entry["num_env"], 0, 0)
        if "reason" in entry:
            answer: Measured | Failed = Failed(entry["reason"], entry["text"])
        else:
            known = {name: entry[name] for name in names if name in entry}
            answer = Measured(**{"device_bytes": None, **known})
        profiles.append((Ask(candidate, 0.0), answer))
    return results_of(profiles)


def stop(results: Sequence[CandidateResult]) -> CandidateResult | None:
    """Returns where Algorithm 2 stops in a row; None if it goes to the end."""
    powers = [f for f in results if f.candidate.num_env & (f.candidate.num_env - 1) == 0]
    for before, after in itertools.pairwise(powers):
        if sat(before.measured, after.measured) < ALPHA:
            return after
    return None


def draw(tasks: Mapping[str, TuneResults], folder: Path, where: str) -> None:
    """Draws throughput and memory, a column for each task."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(1.6 + 4.4 * len(tasks), 6.6), layout="constrained")
    axes = figure.subplots(2, len(tasks), squeeze=False, sharex="col", height_ratios=[3, 2])
    for column, (task, results) in enumerate(tasks.items()):
        top, low = axes[:, column]
        pens = pens_of(results)
        for row, line in results.rows.items():
            pen, num_envs = pens[row], [f.candidate.num_env for f in line]
            style = {"color": pen.colour, "marker": pen.marker, "markersize": 5}
            rates = [f.measured.steps_per_s for f in line]
            errors = [f.measured.steps_per_s * f.measured.error for f in line]
            top.errorbar(num_envs, rates, yerr=errors, capsize=2.5, label=pen.label, **style)
            low.plot(num_envs, [f.gib for f in line], **style)
            for marked, marker, size in ((results.knee(row), "o", 12), (stop(line), "|", 22)):
                if marked is not None:
                    top.plot(
                        [marked.candidate.num_env], [marked.measured.steps_per_s], marker,
                        markersize=size, markerfacecolor="none", markeredgecolor=INK, zorder=4,
                    )  # fmt: skip
        num_envs = sorted({f.candidate.num_env for f in results.all})
        ticks = [n for n in num_envs if n & (n - 1) == 0] or num_envs[:1]
        low.set_xscale("log", base=2)
        low.set_xticks(ticks, labels=[f"{tick:,}" for tick in ticks])
        low.minorticks_off()
        low.set_xlabel("num_env of each GMI")
        top.set_ylim(0, None)
        low.set_ylim(0, 1.15 * max(f.gib for f in results.all))
        top.yaxis.set_major_formatter(EngFormatter(sep=" "))
        top.set_title(TASKS[task][0], loc="left", fontweight="bold", color=INK)
        for axis in (top, low):
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("environment steps/s, all GMIs")
    axes[1, 0].set_ylabel("memory of all GMIs (GiB)")
    for marker, size, label in (("o", 9, "saturated"), ("|", 12, "Algorithm 2 stops")):
        axes[0, -1].plot(
            [], [], marker, markersize=size, markerfacecolor="none", markeredgecolor=INK,
            label=label,
        )  # fmt: skip
    axes[0, -1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    figure.text(0.01, -0.02, where, fontsize=8, color=PALE, va="top")
    save_picture(figure, folder, "figure10")


def row_of(task: str, results: TuneResults, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the row of a task."""
    best = max(results.all, key=lambda f: f.measured.steps_per_s)
    line = results.rows[best.candidate.row]
    knee, first = results.knee(best.candidate.row) or best, line[0]
    return {
        "name": f"figure10/{task}",
        "value": round(knee.measured.steps_per_s, 1),
        "unit": "steps/s",
        "gmi_per_gpu": best.candidate.row.gmi_per_gpu,
        "first": round(first.measured.steps_per_s, 1),
        "first_at": first.candidate.num_env,
        "saturated_at": knee.candidate.num_env,
        "best_at": best.candidate.num_env,
        "algorithm2_stops_at": {
            row.gmi_per_gpu: end.candidate.num_env
            for row, row_results in results.rows.items()
            if (end := stop(row_results)) is not None
        },
        "memory_ratio": round(line[-1].gib / first.gib, 3),
        "backend": "cpu",
        "points": list(points),
    }


def main() -> int:
    """Reads, draws and reports; returns 1 if a task has no points."""
    options_of = parser(__doc__)
    options_of.add_argument("--tasks", nargs="+", choices=TASKS, default=list(_DEFAULT))
    options_of.add_argument("--pictures", type=Path, default=_PICTURES)
    options_of.add_argument("--dry", action="store_true", help="print the rows, keep none")
    options = options_of.parse_args()
    kept, machines = rows_of(RESULTS / "selector.json"), []
    results_by_task: dict[str, TuneResults] = {}
    for task in options.tasks:
        row = kept.get(f"real/{task}", {"grid": []})
        results = findings(row["grid"])
        if not results.all:
            say(f"{task}: grid.py has no point of it")
            continue
        results_by_task[task] = results
        machines.append(row["machine"])
        emit(
            "selector", **row_of(task, results, row["grid"]), dry=options.dry,
            measured_at=row["commit"], measured_on=row["date"],
        )  # fmt: skip
    if results_by_task:
        names = "; ".join(dict.fromkeys(machines))
        where = f"Two CPU cores and MuJoCo, not a GPU as in the paper. {names}."
        draw(results_by_task, options.pictures, where)
    return 0 if len(results_by_task) == len(options.tasks) else 1


if __name__ == "__main__":
    sys.exit(main())
