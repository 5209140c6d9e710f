"""Prints a forecast as tables: what it was computed from, and what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.comm.plan.project import duration_text
from gmi_drl.launcher.view.tables import print_folded, print_table
from gmi_drl.placement import counted

if TYPE_CHECKING:
    from rich.console import Console

    from gmi_drl.selector.forecast.forecast import Forecast, Range
    from gmi_drl.selector.forecast.hardware import Hardware
    from gmi_drl.selector.forecast.model import Work
    from gmi_drl.selector.forecast.search import ProjectedCandidate

PROJECTED: Final = "projected, not measured"
_SHOWN: Final = 10  # candidates


def print_forecast(
    console: Console, hardware: Hardware, work: Work, rows: Sequence[Forecast]
) -> None:
    """Prints the figures of the machine, an iteration's parts, and a line for each size."""
    figures = []
    for key, figure in (*hardware.tasks[work.env_id].items(), *hardware.figures.items()):
        bounds = "" if figure.low == figure.high else f"{figure.low:g} to {figure.high:g}"
        figures.append([key, f"{figure.value:g}", bounds, figure.basis, figure.source])
    columns = ["figure", "value", "range", "basis", "source"]
    print_folded(console, f"Figures of {hardware.name} ({hardware.device.name})", columns, figures)
    ends = rows if len(rows) == 1 else (rows[0], rows[-1])
    parts = [
        [term, *(duration_text(row.seconds[term]) for row in ends)]
        for term in sorted(rows[-1].seconds, key=lambda name: -rows[-1].seconds[name])
        if any(row.seconds[term] > 0 for row in ends)
    ]
    columns = ["part", *(counted(row.hosts, "host") for row in ends)]
    print_table(console, f"An iteration ({PROJECTED})", columns, parts)
    lines = []
    for row in rows:
        lag = [] if row.lag is None else [f"{row.lag[1]:.0f} ({row.lag[0]:.0f}-{row.lag[2]:.0f})"]
        lines.append([
            str(row.hosts), str(row.gpus), span(row.steps_per_s), _shares(row.efficiency), *lag,
            row.dominating, row.limiting or "-", f"{row.failures_per_day:.2g}",
            f"{row.usd_per_billion_steps[1]:.2f}", f"{row.learned:.2g}",
        ])  # fmt: skip
    columns = [
        "hosts", "GPUs", "steps/s (p10-p90)", "efficiency",
        *(["lag, updates"] if rows[0].lag is not None else []),
        "most time", "added by scale", "losses a day", "USD a billion steps", "learned of a step",
    ]  # fmt: skip
    title = f"{work.env_id}, {work.template}, {work.num_env} environments in each GMI ({PROJECTED})"
    print_folded(console, title, columns, lines)
    console.out(
        "steps/s, efficiency: medians, and p10-p90 over the ranges of the figures and over chance. "
        "'learned of a step' is by the tuner's rule for larger updates, of one GPU's update as 1.",
        highlight=False,
    )


def print_candidates(
    console: Console, hardware: Hardware, hosts: int, best: Sequence[ProjectedCandidate],
    objective: str,
) -> None:  # fmt: skip
    """Prints the best candidates of a search on the model."""
    top = best[0].worth(objective)
    lines = [
        [
            str(c.candidate.row.gmi_per_gpu), f"{c.candidate.num_env:,}",
            f"{c.candidate.horizon}", f"{c.candidate.samples * hosts:,}",
            _short(c.steps_per_s), f"{c.learned:.2g}", f"{c.worth(objective) / top:.2f}",
        ]
        for c in best[:_SHOWN]
    ]  # fmt: skip
    columns = [
        "GMIs a GPU",
        "num_env",
        "horizon",
        "update",
        "steps/s",
        "learned of a step",
        "worth",
    ]
    where = f"{counted(hosts, 'host')} of {hardware.name}"
    title = f"The best of {len(best)} candidates, {where}, by {objective} ({PROJECTED})"
    print_folded(console, title, columns, lines)


def span(values: Range) -> str:
    """Writes a range of rates: 1.2 M (0.9 M-1.4 M)."""
    low, middle, high = map(_short, values)
    return f"{middle} ({low}-{high})"


def _short(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:  # which three digits round to it
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _shares(values: Range) -> str:
    low, middle, high = values
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def as_json(hardware: Hardware, work: Work, rows: Sequence[Forecast]) -> dict[str, Any]:
    """Returns everything as JSON's types and dataclasses of these."""
    task = hardware.tasks[work.env_id]
    return {
        "projected": True,
        "machine": hardware.name,
        "device": hardware.device.name,
        "figures": {
            key: figure.model_dump() for key, figure in (*hardware.figures.items(), *task.items())
        },
        "work": work,
        "hosts": [
            {**asdict(row), "dominating": row.dominating, "limiting": row.limiting} for row in rows
        ],
    }
