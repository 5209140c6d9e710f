"""Writes docs/learning.md and its pictures from the finished cells of the learning benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cells, evaluations, training_returns
from learning_tasks import TASKS
from matplotlib.figure import Figure

SYSTEMS = {"ours": ("gmi-drl", "#1f77b4"), "sb3": ("Stable-Baselines3", "#ff7f0e")}
_SHOWN = (
    "n_envs", "horizon", "minibatch", "epochs", "net", "trunk", "activation", "gamma", "lam",
    "learning_rate", "schedule", "clip", "max_grad_norm",
)  # fmt: skip
_PPO_ONLY = {"minibatch", "epochs", "trunk", "lam", "clip"}

_INTRODUCTION = """\
# Learning: what it reaches, and what is published

| CartPole-v1 | HalfCheetah-v5 | Ant-v5 | MinAtar Breakout |
|---|---|---|---|
| ![](films/cartpole.gif) | ![](films/cheetah.gif) | ![](films/ant.gif) | ![](films/minatar.gif) |
| 200,000 steps | a million | 800,000 | 500,000 |

One run each, seed 1, of `examples/cartpole.yaml`, `halfcheetah.yaml` and `ant.yaml`, and of row
MinAtar-Breakout below, filmed by [`gmi-drl video`](trained-policies.md#video). The tables are over
seeds, and say what is reached.

Written by `bench/learning.py --report` from `bench/results/learning.json`.

*Evaluation* is the mean return of 20 episodes of the policy's mean action at the end; *training*
is the mean return of the last 100 training episodes, which sample their actions: published figures
are mostly of this kind. Both are medians over seeds, with the lowest and highest seed in brackets.
*CPU s* is what 1,000 steps cost; of a run that was interrupted it is not known.

Published MuJoCo figures are of the v4 tasks. The v5 tasks differ (Ant-v5 also observes and pays
for contact forces), which is why Stable-Baselines3 runs beside ours on the very same task. An Ant
that stands still is paid about 1,000 an episode for being healthy, so a hardly trained mean action
evaluates to about 900: on Ant the training return says more.

`CartPole-v1-a2c-local` is A2C under the optimizer `local`; where the name has no optimizer it is
the algorithm's own: `all_reduce` for PPO, A2C and PG, `async_gradients` for A3C (which is what A2C
is under it), `async_samples` for IMPALA and APPO. GMIs that sample and those that train
share one core there, so *CPU s* says little of those rows. Of APPO, and of PG under
`async_gradients`, two seeds of five end below 400. `CartPole-v1-rl-apex` is trained from Python by
[`rl.Apex`](rl.md) over two evaluators, on one core with them.

SB3's zoo publishes one run of A2C on HalfCheetah: one environment, and updates of 5 steps by
RMSProp. The same settings end far below it here, so that run is no mean. Ours are other settings:
updates of 256 steps of 16 environments by Adam, a larger network, and a loss on action means
outside the bounds (`bounds_coef`). What A2C reaches is up to the seed with these too.

| task | steps | system | seeds | evaluation | training | CPU s | published |
|---|---|---|---|---|---|---|---|
"""


def write_curves(cells: Cells, folder: Path) -> list[str]:
    """Draws a picture for every task that has cells, and returns these tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for task in TASKS:
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        any_curve = False
        for system, (label, color) in SYSTEMS.items():
            curves = [record["curve"] for record in cells.of(task, system) if record["curve"]]
            if not curves:
                continue
            any_curve = True
            steps, low, middle, high = band(curves)
            count = "1 seed" if len(curves) == 1 else f"median and range of {len(curves)} seeds"
            axes.plot(steps, middle, color=color, label=f"{label} ({count})")
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        if not any_curve:
            continue
        axes.set(xlabel="environment steps", ylabel="return (last 100 episodes)", title=task)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
        figure.savefig(folder / f"{task}.png", dpi=120)
        drawn.append(task)
    return drawn


def band(
    curves: list[list[list[float]]], low: float = 0.0, high: float = 1.0
) -> tuple[np.ndarray, ...]:
    """Returns the steps at which all curves are known, and their low, median and high there.

    `low` and `high` are quantiles: by default the lowest and the highest.
    """
    start = max(curve[0][0] for curve in curves)
    end = min(curve[-1][0] for curve in curves)
    positions = np.linspace(start, end, 200)
    values = np.array([np.interp(positions, *np.array(curve).T) for curve in curves])
    return positions, *np.quantile(values, (low, 0.5, high), axis=0)


def write_page(cells: Cells, page: Path, drawn: Sequence[str]) -> None:
    """Writes the page, with the pictures of the tasks in `drawn`."""
    lines = _INTRODUCTION.splitlines()
    for name, task in TASKS.items():
        for system, (label, _) in SYSTEMS.items():
            records = cells.of(name, system)
            if records:
                lines.append(
                    f"| {name} | {_steps(records)} | {label} | {len(records)} "
                    f"| {_summary(evaluations(records))} | {_summary(training_returns(records))} "
                    f"| {_cpu(records)} | {task.reference} |"
                )
    lines += ["", "## Curves", ""]
    for name in drawn:
        lines += [f"![{name}](learning/{name}.png)", ""]
    lines += ["## Settings", ""]
    for name in TASKS:
        for system, (label, _) in SYSTEMS.items():
            seeds: dict[str, list[str]] = {}  # by their settings
            for record in cells.of(name, system):
                seeds.setdefault(_settings(record), []).append(str(record["seed"]))
            for settings, own in seeds.items():
                which = f", seeds {', '.join(own)}" if len(seeds) > 1 else ""
                lines.append(f"- {name}, {label}{which}: {settings}")
    lines += ["", f"Machines: {'; '.join(_machines(cells))}.", ""]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines))


def _summary(values: list[float]) -> str:
    if not values:
        return "-"
    return f"**{statistics.median(values):,.0f}** ({min(values):,.0f} to {max(values):,.0f})"


def _cpu(records: list[dict[str, Any]]) -> str:
    cpu_seconds = [record["cpu_seconds_per_1000_steps"] for record in records]
    known = [seconds for seconds in cpu_seconds if seconds is not None]
    return f"{statistics.median(known):.2f}" if known else "-"


def _steps(records: list[dict[str, Any]]) -> str:
    counts = sorted({record["steps"] for record in records})
    return " / ".join(f"{count:,}" for count in counts)


def _settings(record: dict[str, Any]) -> str:
    settings, algorithm = record["settings"], record["settings"].get("algorithm", {})
    ppo = algorithm.get("name", settings.get("method", "ppo")) == "ppo"
    hidden = {*algorithm} if ppo else _PPO_ONLY | {*algorithm}
    parts = [f"{key} {settings[key]}" for key in _SHOWN if key not in hidden]
    if ppo and settings["entropy_coef"]:
        parts.append(f"entropy_coef {settings['entropy_coef']}")
    parts += [f"{key} {value}" for key, value in algorithm.items()]
    parts += [f"{key} {value}" for key, value in settings.get("sections", {}).items()]
    if optimizer := settings.get("rl"):
        parts.append(f"rl.{optimizer}")
    if wrappers := settings.get("wrappers"):
        parts.append(f"wrappers {wrappers}")
    if gmis := settings.get("gmis"):
        parts.append(f"{gmis} GMIs that share the environments, with such a batch and replay each")
    if record["system"] == "sb3":
        if not ppo:
            parts += [f"{key} {settings[key]}" for key in ("method", "descent", "trunk", "lam")]
        parts += [
            f"VecNormalize observation {settings['normalize_observation']}",
            f"reward {settings['normalize_reward']}",
            *([f"gSDE every {settings['sde']} steps"] if settings["sde"] else []),
        ]
    elif ppo:
        observation = "observation, " if settings["normalize_observation"] else ""
        parts.append(f"{observation}value and advantage normalisation, clipped value loss")
    versions = [f"{name} {version}" for name, version in record["versions"].items()]
    return ", ".join(parts + versions)


def _machines(cells: Cells) -> list[str]:
    machines = {str(record.get("machine", "unknown")) for record in cells.records.values()}
    return sorted(machines)
