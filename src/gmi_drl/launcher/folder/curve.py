"""Draws the learning curve of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gmi_drl.launcher.view.view import sides

from .run_folder import METRICS, metrics_in

_BANDS: Final = 150  # more are a comb that nobody can read
_PANELS: Final = {2: "AB", 3: "AB;AC", 4: "AB;CD"}  # by their number; the curve is the first


def draw_curve(folder: Path, title: str) -> Path | None:
    """Draws report/curve.png: return against steps and time, and where the time went.

    None when no episode has ended yet.
    """
    metrics = metrics_in((folder / METRICS).read_bytes()) if (folder / METRICS).exists() else []
    points = [m for m in metrics if m.get("return_mean") is not None]
    if not points:
        return None
    from matplotlib.figure import Figure  # half a second, needed only here
    from matplotlib.ticker import EngFormatter, MaxNLocator

    merged = {key: value for m in metrics for key, value in m.items()}
    stacks, lagging = sides(merged), [m for m in metrics if "policy_lag_mean" in m]
    panels = 1 + len(stacks) + bool(lagging)
    figure = Figure(figsize=(10, 4.2 if panels == 2 else 8.4), layout="constrained")
    axes = list(figure.subplot_mosaic(_PANELS[panels]).values())
    left = axes[0]
    left.plot([m["steps"] for m in points], [m["return_mean"] for m in points], color="#1f77b4")
    left.set(xlabel="environment steps", ylabel="return (mean of the last 100 episodes)")
    left.set_title(title)
    left.grid(alpha=0.3)
    last = points[-1]  # steps/s hardly change in a run
    rate = last["steps"] / last["time_s"] if last["time_s"] else 1.0
    to_seconds = (lambda steps: steps / rate), (lambda seconds: seconds * rate)
    seconds = left.secondary_xaxis("top", functions=to_seconds)
    seconds.set_xlabel("seconds")
    if lagging:
        _draw_lag(axes[1], lagging)
    suffixes = ("",) if len(stacks) == 1 else (" (agents)", " (trainers)")
    for axis, phases, suffix in zip(axes[1 + bool(lagging) :], stacks, suffixes, strict=True):
        _draw_shares(axis, metrics, phases, suffix)
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(6))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    path = folder / "report" / "curve.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _draw_shares(axis: Any, metrics: list[dict[str, Any]], phases: list[str], suffix: str) -> None:
    # A line of a served run has the phases of the GMIs that had reported since the line before.
    band = -(-len(metrics) // _BANDS)  # lines of metrics that are drawn as one
    parts = [metrics[i : i + band] for i in range(0, len(metrics), band)]
    seconds = [[sum(m.get(f"{phase}_s", 0.0) for m in part) for part in parts] for phase in phases]
    totals = [sum(column) or 1.0 for column in zip(*seconds, strict=True)]
    shares = [[100 * s / t for s, t in zip(row, totals, strict=True)] for row in seconds]
    axis.stackplot([part[-1]["steps"] for part in parts], *shares, labels=phases)
    axis.set(xlabel="environment steps", ylabel="share of the time (%)", ylim=(0, 100))
    axis.set_title(f"where the time goes{suffix}")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")


def _draw_lag(axis: Any, metrics: list[dict[str, Any]]) -> None:
    steps = [m["steps"] for m in metrics]
    oldest = [m["policy_lag_max"] for m in metrics]
    axis.plot(steps, oldest, color="#bbbbbb", linewidth=4, label="oldest")  # seen if both are one
    axis.plot(steps, [m["policy_lag_mean"] for m in metrics], color="#d62728", label="mean")
    axis.set(xlabel="environment steps", ylabel="updates behind", ylim=(0, None))
    axis.set_title("policy lag of the experience")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")
    axis.grid(alpha=0.3)
