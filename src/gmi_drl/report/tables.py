"""What the commands print: tables in a terminal, aligned lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gmi_drl.launcher.folder.run_folder import resume_command
from gmi_drl.launcher.view.printable import printable
from gmi_drl.launcher.view.tables import print_table
from gmi_drl.launcher.watch.held_memory import peak_sentence
from gmi_drl.placement import counted, format_cores, hidden_sizes

if TYPE_CHECKING:
    from rich.console import Console

    from gmi_drl.launcher.start.launcher import RunResult
    from gmi_drl.placement import Config, Device, GmiSpec, Layout

    from .run_list import RunSummary


def print_plan(console: Console, config: Config, layout: Layout) -> None:
    """Devices, GMIs, the size of an update, and the reduction with its reason."""
    on_gpu = any(device.kind == "gpu" for device in layout.topology.devices)
    columns = ["device", "name", "cores", *(["SMs", "memory"] if on_gpu else []), "GMIs"]
    rows = []
    for device, gmis in zip(layout.topology.devices, layout.mpl, strict=True):
        slots = []
        if on_gpu:
            slots = [_shown(device.sm_count), _memory(device)]
        rows.append(
            [
                str(device.index),
                device.name,
                format_cores(device.cores),
                *slots,
                ", ".join(map(str, gmis)),
            ]
        )
    print_table(console, "Devices", columns, rows)
    print_table(
        console,
        f"GMIs (template {layout.template})",
        ["GMI", "device", "roles", "backend", "cores", *(["SMs"] if on_gpu else []), "num_env"],
        [
            [
                str(gmi.gmi_id),
                str(gmi.gpu_id),
                ", ".join(gmi.roles),
                gmi.backend,
                format_cores(gmi.cores),
                *([_sms(gmi)] if on_gpu else []),
                str(gmi.num_env or "-"),
            ]
            for gmi in layout.gmis
        ],
    )
    title = "Serving" if config.mode == "serving" else "Training"
    print_table(console, title, ["what", "value"], _training(config, layout))


def _memory(device: Device) -> str:
    """What a GPU has, and what others hold of it, which GMIs do not get."""
    if not device.mem_bytes:
        return "-"
    held = f" ({device.held_bytes / 2**30:.1f} held by others)" if device.held_bytes else ""
    return f"{device.mem_bytes / 2**30:.0f} GiB{held}"


def _sms(gmi: GmiSpec) -> str:
    if gmi.mig is not None:
        return gmi.mig.profile
    return f"{gmi.sm_percent} %" if gmi.sm_percent else "shared"


def _training(config: Config, layout: Layout) -> list[list[str]]:
    algorithm, experience = config.algorithm, config.experience
    total = sum(gmi.num_env for gmi in layout.gmis)
    sizes = ":".join(map(str, hidden_sizes(algorithm.network)))
    rows = [
        ["environment", f"{config.env.id}, {total} in all"],
        ["policy", f"{sizes} {algorithm.activation}"],
    ]
    if config.mode == "serving":
        rows[1][1] += f", of {config.run.policy}" if config.run.policy else ", of random weights"
        return [*rows, ["steps", f"{config.run.total_steps:,}"]]
    own = config.env.num_env * algorithm.horizon
    if config.mode == "async":
        own *= experience.batch_segments
        rows.append(
            [
                "segments",
                f"{counted(algorithm.horizon, 'step')} of "
                f"{counted(config.env.num_env, 'environment')}, "
                f"{experience.capacity} under way on a link, {experience.max_policy_lag} updates "
                f"old at most, channels {experience.channels}",
            ]
        )
    trainers = len(layout.holding("trainer"))
    if layout.template == "tdg_ex":  # of several agents each
        own = total * algorithm.horizon // trainers
    samples = own * trainers
    where = "GMI" if layout.template == "tcg_ex" else "trainer"
    iterations = -(-config.run.total_steps // samples)
    return [
        *rows,
        ["algorithm", algorithm.name],
        ["samples an update", f"{samples:,} ({own:,} in each {where})"],
        [
            "minibatches",
            f"{algorithm.minibatches} of {own // algorithm.minibatches:,} samples in each {where}, "
            f"{counted(algorithm.epochs, 'epoch')}",
        ],
        ["iterations", f"{iterations:,} for {config.run.total_steps:,} steps"],
    ]


def print_runs(console: Console, runs: Sequence[RunSummary]) -> None:
    """One line a run."""
    rows = [
        [
            run.name,
            "-" if run.started is None else _clock(run.started),
            run.state,
            run.env or "-",
            "-" if run.seed is None else str(run.seed),
            _shown(run.iteration),
            _shown(run.steps),
            "-" if run.return_mean is None else f"{run.return_mean:.1f}",
            "-" if run.eval_return is None else f"{run.eval_return:.1f}",
            "-" if run.steps_per_s is None else f"{run.steps_per_s:,.0f}",
            str(run.path),
        ]
        for run in runs
    ]  # fmt: skip
    columns = [
        "name", "started", "state", "env", "seed", "iterations", "steps", "return", "evaluation",
        "steps/s", "folder",
    ]  # fmt: skip
    empty = [column for i, column in enumerate(columns) if all(row[i] == "-" for row in rows)]
    # A folder ends with the name and when it began.
    drop = (*empty, "name", "started", "iterations", "steps/s", "seed", "steps", "return", "env")
    print_table(console, "Runs", columns, rows, drop)


def print_result(console: Console, result: RunResult) -> None:
    """How a run ended, where its files are, and how to go on with one that was stopped."""
    mean = result.return_mean
    rows = [["state", result.state]]
    if result.steps:
        rows += [
            ["iterations", f"{result.iteration:,}"],
            ["steps", f"{result.steps:,}"],
            ["training time", f"{result.seconds:.1f} s"],
            ["steps/s", f"{result.steps_per_s:,.0f}"],
            ["return while training", "-" if mean is None else f"{mean:.1f}"],
            ["return of the trained policy", _evaluated(result)],
            *([["segments", str(result.experience)]] if result.experience else []),
            *_memory_held(result),
        ]
    else:  # roles that report nothing
        rows += [[f"GMI {i} returned", repr(value)[:200]] for i, value in enumerate(result.gmis)]
    print_table(console, "Run", ["what", "value"], [*rows, *_traces(result)])
    # Each on a line of its own and whole, to be copied.
    console.out(f"folder: {printable(result.folder)}", highlight=False)
    if result.curve is not None:
        console.out(f"learning curve: {printable(result.curve)}", highlight=False)
    if result.state == "stopped" and (command := resume_command(result.folder)):
        console.out(f"to go on: {command}", highlight=False)


def _evaluated(result: RunResult) -> str:
    if result.eval_return is None:
        return "-"
    text = f"{result.eval_return:.1f}"
    if result.eval_std is not None:
        text += f" ± {result.eval_std:.1f}"
    if result.eval_episodes is not None:
        text += f" (mean and deviation of {counted(result.eval_episodes, 'episode')})"
    return text


def _memory_held(result: RunResult) -> list[list[str]]:
    if not any(result.mem_peak_bytes):  # of another launch, or of roles that were never run
        return []
    return [["peak memory of a GMI", peak_sentence(result.mem_peak_bytes)]]


def _traces(result: RunResult) -> list[list[str]]:
    if not result.traces:
        return []
    from gmi_drl.launcher.watch.traces import where

    return [["traces", where(result.traces)]]


def _clock(since_epoch_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since_epoch_s))


def _shown(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
