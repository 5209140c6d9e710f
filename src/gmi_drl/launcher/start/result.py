"""Returns how a run ended to its caller, and writes it to the run's folder."""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gmi_drl.launcher.folder.run_folder import RunFolder, note_end, number_in, resume_command
from gmi_drl.launcher.watch.records import SegmentCounts, segment_counts_of
from gmi_drl.placement import Config
from gmi_drl.roles.role.job import Job

# What a role says of the episodes of the trained policy.
_EVALUATION: Final = {"eval_return": float, "eval_std": float, "eval_episodes": int}


@dataclass(frozen=True)
class RunResult:
    """Says how a run ended. `gmis` holds what each GMI's role returned, by gmi_id."""

    folder: Path
    state: str  # "finished", or "stopped" when it was asked to end
    iteration: int
    steps: int
    seconds: float  # training time, all sessions of the run together
    steps_per_s: float
    return_mean: float | None  # of the last 100 training episodes
    eval_return: float | None  # mean return of the greedy policy's whole episodes
    eval_std: float | None  # their deviation
    eval_episodes: int | None  # how many they were
    curve: Path | None
    gmis: list[Any]
    restarts: int = 0  # of GMIs whose process died, in this launch
    experience: SegmentCounts | None = None  # mode async: what became of all segments
    traces: tuple[Path, ...] = ()  # of a profiled run: a file for each process of GMIs
    mem_peak_bytes: tuple[int, ...] = ()  # the most that each GMI has held, by gmi_id


@dataclass(frozen=True)
class RunEnd:
    """Says how training ended: what GMIs have returned, and the files of their traces."""

    state: str
    gmis: list[Any]
    traces: tuple[Path, ...] = ()


def memory_held(job: Job) -> dict[str, list[int]]:
    """Reads, by gmi_id, what each GMI has held of its device.

    The most bytes in all its lives; what the driver said that its process held when it ended (0: it
    did not say); and the SMs that it had (0: no GPU's).
    """
    tally = job.tally.open()
    rows = [tally.row(gmi.gmi_id) for gmi in job.layout.gmis]
    names = ("mem_peak_bytes", "mem_process_bytes", "sm_count")
    return {name: [row[name] for row in rows] for name in names}


def result_of(
    job: Job, folder: RunFolder, end: RunEnd, last: dict[str, Any], restarts: int
) -> RunResult:
    """Returns how a run that is done ended, and writes it to its folder."""
    batch = job.config.experience.batch_segments
    segments = segment_counts_of(job.layout, job.tally.open(), end.gmis, batch)
    if segments is not None and not segments.add_up:
        warnings.warn(
            f"{folder.path}: the counts of agents and trainers do not add up ({segments}). Please "
            "report it.",
            stacklevel=2,
        )
    answers = [a for a in end.gmis if isinstance(a, dict) and a.get("eval_return") is not None]
    evaluation: dict[str, Any] = {  # a role of the user's may say less
        key: kind(answers[0][key])
        for key, kind in _EVALUATION.items()
        if answers and answers[0].get(key) is not None
    }
    memory = memory_held(job)
    # A resumed run that had nothing left to do keeps the figures that run.json has.
    state = folder.state() | summary_of(last)
    seconds, steps = number_in(state, "time_s"), int(number_in(state, "steps"))
    speed = steps / seconds if seconds else 0.0  # of the whole run, not of its last iteration
    fields = {**summary_of(last), **memory, **evaluation, "steps_per_s": speed}
    if segments is not None:
        fields["experience"] = segments.as_json()
    note_end(folder, state=end.state, finished=time.time(), **fields)
    return RunResult(
        folder=folder.path,
        state=end.state,
        iteration=int(number_in(state, "iteration")),
        steps=steps,
        seconds=seconds,
        steps_per_s=speed,
        return_mean=_mean_in(state),
        **{key: evaluation.get(key) for key in _EVALUATION},
        curve=_curve(folder, job.config),
        gmis=end.gmis,
        restarts=restarts,
        experience=segments,
        traces=end.traces,
        mem_peak_bytes=tuple(memory["mem_peak_bytes"]),
    )


def _mean_in(state: dict[str, Any]) -> float | None:
    """Returns the mean return in run.json, which is not finite where the policy has diverged."""
    with suppress(KeyError, TypeError, ValueError, OverflowError):  # none, or it is damaged
        return float(state["return_mean"])
    return None


def _curve(folder: RunFolder, config: Config) -> Path | None:
    """Draws the picture of the run; without one, a warning: the run itself is done."""
    from gmi_drl.launcher.folder.curve import draw_curve

    try:
        return draw_curve(folder.path, f"{config.run.name}: {config.env.id}")
    except (OSError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        warnings.warn(f"{folder.path}: no learning curve ({error})", stacklevel=2)
        return None


def summary_of(last: dict[str, Any]) -> dict[str, Any]:
    """Returns what is kept of a run's last iteration."""
    keys = ("iteration", "steps", "steps_per_s", "return_mean", "time_s", "refused")
    return {key: last[key] for key in keys if key in last}


def nothing_left(job: Job, folder: RunFolder) -> str:
    """Says that a resumed run had ended before, and how it trains on; "" of another.

    Such a run shows its figures from before. A user's role may train and report no iteration.
    """
    before, run = folder.state(), job.config.run
    if number_in(before, "steps") >= run.total_steps:
        reached, keys = f"run.total_steps={run.total_steps}", [f"total_steps={2 * run.total_steps}"]
        if run.target_return is not None:
            keys.append("target_return=null")
        purpose = "For as much again"
    elif run.target_return is not None and before.get("iteration") is not None:
        reached, keys = f"run.target_return={run.target_return:g}", ["target_return=null"]
        purpose = f"To train to run.total_steps={run.total_steps}"
    else:
        return ""
    command = " --set run.".join([resume_command(folder.path), *keys])
    return f"nothing was left to do: this run has reached {reached}. {purpose}: {command}"
