"""Prints how a run ended, where its files are, and how to go on with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gmi_drl.launcher.folder.run_folder import resume_command
from gmi_drl.launcher.view.tables import print_table, printable
from gmi_drl.launcher.view.view import peak_summary
from gmi_drl.placement import counted

if TYPE_CHECKING:
    from rich.console import Console

    from gmi_drl.launcher.start.launcher import RunResult


def print_result(console: Console, result: RunResult) -> None:
    """Prints how a run ended, where its files are, and how to go on with one that was stopped."""
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
    return [["peak memory of a GMI", peak_summary(result.mem_peak_bytes)]]


def _traces(result: RunResult) -> list[list[str]]:
    if not result.traces:
        return []
    from gmi_drl.launcher.watch.records import where

    return [["traces", where(result.traces)]]
