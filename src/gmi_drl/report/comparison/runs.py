"""Reads the runs that are compared: config, metrics, and how each ended. They may be damaged."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.folder.run_folder import EVALUATION, metrics_in
from gmi_drl.launcher.folder.run_folder import METRICS as METRICS_FILE
from gmi_drl.placement import ConfigError, counted, load_config
from gmi_drl.placement.config.yaml_text import read_yaml
from gmi_drl.report.run_list import RunSummary, list_runs, read_object

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_BYTES: Final = 2**20  # of a config
_MOST_KEYS: Final = 5_000  # of a config: aliases in YAML can make a few lines into millions
_MOST_VALUE: Final = 200  # characters that are shown of one
_MOST: Final = 1e300  # of a number: a mean of several is still one

AXES: Final = {"steps": "steps", "time_s": "seconds"}  # what curves go by, by the key of metrics
METRICS: Final = {  # what can be drawn, where runs have it
    "return_mean": "return (mean of the last 100 episodes)",
    "length_mean": "steps of an episode",
    "steps_per_s": "steps/s",
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "actor_loss": "actor loss",
    "critic_loss": "critic loss",
    "q_mean": "mean Q",
    "entropy": "entropy",
    "kl": "KL of an update",
    "rating": "rating against its snapshots (Elo's points)",
    "learning_rate": "learning rate",
    "noise_scale": "gradient noise scale (samples)",
    "policy_lag_mean": "policy lag (updates)",
}


class ComparisonError(GmiDrlError, ValueError):
    """Says why runs cannot be compared."""

    command_exit_code = 2


@dataclass(frozen=True)
class ComparedRun:
    """Holds one run as it is compared. Iterations are in the order of their steps."""

    summary: RunSummary
    settings: dict[str, str] | None  # dotted keys of the config; None if it cannot be read
    columns: dict[str, NDArray[Any]]  # [iterations] of AXES and METRICS; NaN where there is none
    wall_s: float | None  # from the start to the end of the last launch
    eval_return: float | None  # mean return of the trained policy, without exploration
    eval_episodes: int | None  # which had so many episodes
    warnings: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.summary.path

    @property
    def training_s(self) -> float | None:
        """Returns the seconds of training, all launches together."""
        return self._last("time_s")

    @property
    def steps(self) -> float | None:
        return self._last("steps")

    @property
    def steps_per_s(self) -> float | None:
        """Returns the steps per second of training, of the whole run."""
        steps, seconds = self.steps, self.training_s
        return steps / seconds if steps is not None and seconds else None

    @property
    def num_iterations(self) -> int:
        return len(self.columns["steps"])

    def _last(self, key: str) -> float | None:
        return float(self.columns[key][-1]) if self.num_iterations else None


def find_runs(paths: Iterable[Path]) -> list[ComparedRun]:
    """Reads the runs at `paths`, each a run's folder or one that holds runs; each run once."""
    by_path: dict[Path, RunSummary] = {}
    for path in paths:
        if not path.is_dir():
            raise ComparisonError(f"{path}: no such folder. Give runs, or folders that hold runs.")
        summaries = list_runs(path)
        if not summaries:
            raise ComparisonError(f"{path}: no run is in it. `gmi-drl runs` lists runs.")
        by_path.update({summary.path.resolve(): summary for summary in summaries})
    runs = [_read(summary) for summary in by_path.values()]
    if not any(run.num_iterations for run in runs):
        raise ComparisonError(
            f"{_names(runs)}: no metrics yet. Compare when iterations have ended; a run of roles "
            "that report nothing has no curve."
        )
    return runs


def _names(runs: Sequence[ComparedRun]) -> str:
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    return ", ".join(str(run.path) for run in runs[:3]) + more


def _read(summary: RunSummary) -> ComparedRun:
    path, warnings = summary.path, []
    columns, damaged = _read_metrics(path / METRICS_FILE)
    if damaged:
        warnings.append(f"{path}: {counted(damaged, 'damaged line')} of {METRICS_FILE} left out")
    if not len(columns["steps"]):
        warnings.append(f"{path}: no metrics yet")
    settings, trouble = read_settings(path)
    if trouble:
        warnings.append(f"{path}: {trouble}")
    state = read_object(path / "run.json")
    duration_s = _value(state.get("finished")) - _value(state.get("started"))
    wall_s = duration_s if duration_s >= 0 else None  # NaN is not: it is not known
    eval_return, eval_episodes = _read_evaluation(summary, state)
    return ComparedRun(
        summary=summary,
        settings=settings,
        columns=columns,
        wall_s=wall_s,
        eval_return=eval_return,
        eval_episodes=eval_episodes,
        warnings=warnings,
    )


def _read_evaluation(summary: RunSummary, state: dict[str, Any]) -> tuple[float | None, int | None]:
    """Returns the mean return of the trained policy and its episodes, or the run's own at its end.

    What `gmi-drl evaluate` has found counts if it took the most likely actions of the last policy.
    """
    evaluation = read_object(summary.path / EVALUATION)
    mean, steps = _value(evaluation.get("mean")), evaluation.get("trained_steps")
    is_current = evaluation.get("stochastic") is False and steps == summary.steps
    if is_current and math.isfinite(mean):
        return mean, _count(evaluation.get("episodes"))
    return summary.eval_return, _count(state.get("eval_episodes"))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST else None


def _read_metrics(path: Path) -> tuple[dict[str, NDArray[Any]], int]:
    """Returns the iterations with steps and seconds, by column, and how many lines are damaged."""
    try:
        text = path.read_bytes() if path.is_file() else b""  # a pipe would never end
    except OSError:
        text = b""
    complete, _, partial = text.rpartition(b"\n")  # the last one may be in writing
    iterations = [line for line in metrics_in(complete) if _is_iteration(line)]
    damaged = sum(bool(line.strip()) for line in complete.splitlines()) - len(iterations)
    lines = [*iterations, *filter(_is_iteration, metrics_in(partial))]
    lines.sort(key=lambda line: float(line["steps"]))
    columns = {
        key: np.array([_value(line.get(key)) for line in lines], dtype=np.float64)
        for key in (*AXES, *METRICS)
    }
    return columns, damaged


def _is_iteration(line: dict[str, Any]) -> bool:
    return all(math.isfinite(_value(line.get(key))) for key in AXES)


def _value(value: Any) -> float:
    """Returns a number of a line; NaN for what is none, or too large to be drawn."""
    is_number = type(value) is float or type(value) is int
    return float(value) if is_number and abs(value) < _MOST else math.nan


def read_settings(folder: Path) -> tuple[dict[str, str] | None, str]:
    """Returns the config of a run by dotted keys, and what is wrong with it, "" if nothing is."""
    path = folder / "config.yaml"
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None, "it has no config.yaml, and stands for itself"
        data, _, faults = read_yaml(path.read_text(encoding="utf-8"), str(path))
        if faults or not isinstance(data, dict):
            return None, "its config.yaml is damaged, and it stands for itself"
        _flat("", data)  # refuses one that is too large before it is copied
        trouble = ""
        try:
            data = load_config(path).model_dump(mode="json")  # with what newer versions have more
        except ConfigError:
            trouble = "its config is not one of this version; it is compared as it is written"
        settings = _flat("", data)
        if (layout := _layout_digest(folder, data)) is not None:
            settings["layout.file"] = layout
        hardware = data.get("hardware")
        if isinstance(hardware, dict) and isinstance(cores := hardware.get("cores"), list):
            # Not which: seeds side by side have different ones.
            settings["hardware.cores"] = counted(len(cores), "core")
    except (OSError, ValueError, RecursionError):
        return None, "its config.yaml cannot be read, and it stands for itself"
    return settings, trouble


def _layout_digest(folder: Path, data: dict[str, Any]) -> str | None:
    """Names the contents of a run's own layout file, which lies beside its config."""
    layout = data.get("layout")
    if not isinstance(layout, dict) or not layout.get("file"):
        return None
    return f"layout.yaml ({_digest((folder / 'layout.yaml').read_bytes())})"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _flat(key: str, value: Any) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, leaf in _leaves(key, value):
        settings[name] = leaf
        if len(settings) > _MOST_KEYS:
            raise ValueError("too many keys")
    return settings


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list):
        if all(not isinstance(inner, (dict, list)) for inner in value):
            yield key, _shown(value)
        else:
            for number, inner in enumerate(value):
                yield from _leaves(f"{key}[{number}]", inner)
    else:
        yield key, _shown(value)


def _shown(value: Any) -> str:
    """Returns a value as text; a long one as its beginning, and by its digest as no other."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(text) <= _MOST_VALUE:
        return text
    return f"{text[:_MOST_VALUE]} ... ({_digest(text.encode())})"
