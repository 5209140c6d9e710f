"""Groups runs whose configs differ in the seed alone; tells what sets groups apart, and sums up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gmi_drl.launcher.view.tables import cut, number_text, print_table, printable
from gmi_drl.report.statistics import Estimate, estimate

from .runs import ComparedRun, find_runs

if TYPE_CHECKING:
    from rich.console import Console

# Where a run lies, and by what random numbers it went.
_RUN_KEYS: Final = ("run.seed", "run.folder")
_MOST_LABEL: Final = 80
_KEYS_IN_LABEL: Final = 3
_MOST_DIFFERENCES: Final = 20  # that a terminal is shown
_ABSENT: Final = "-"


@dataclass(frozen=True)
class RunGroup:
    """Holds the runs of one config, by their seeds."""

    label: str
    runs: list[ComparedRun]
    settings: dict[str, str] | None  # without what is of one run alone

    def estimate(self, figure: Callable[[ComparedRun], float | None]) -> Estimate | None:
        """Sums up a figure over the runs that have it."""
        return estimate([value for run in self.runs if (value := figure(run)) is not None])


@dataclass(frozen=True)
class Comparison:
    """Holds what is compared: groups, what sets their configs apart, and warnings."""

    groups: list[RunGroup]
    differences: list[list[str]]  # a key, then its value in each group
    warnings: list[str]

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Comparison:
        """Reads the runs at `paths`, each a run's folder or one that holds runs."""
        runs = find_runs(paths)
        groups = _grouped(runs)
        warnings = [warning for run in runs for warning in run.warnings]
        if len(envs := sorted({run.summary.env or "an unknown one" for run in runs})) > 1:
            warnings.insert(0, f"the runs are of different environments ({', '.join(envs)}), whose "
                               "returns mean different things")  # fmt: skip
        return cls(groups, _differences(groups), warnings)

    @property
    def runs(self) -> list[tuple[str, ComparedRun]]:
        """Lists all runs, each with the label of its group."""
        return [(group.label, run) for group in self.groups for run in group.runs]


def _grouped(runs: Sequence[ComparedRun]) -> list[RunGroup]:
    return [
        RunGroup(
            label, sorted((runs[place] for place in places), key=lambda run: run.summary.seed or 0),
            _common(runs[places[0]].settings),
        )
        for label, places in group_by_config([(run.summary.name, run.settings) for run in runs])
    ]  # fmt: skip


def group_by_config(
    runs: Sequence[tuple[str, dict[str, str] | None]],
) -> list[tuple[str, list[int]]]:
    """Returns the label of each group and the places of its runs, each given as name, settings.

    One whose config cannot be read stands for itself.
    """
    by_settings: dict[object, list[int]] = {}
    common = [_common(settings) for _, settings in runs]
    for place, settings in enumerate(common):
        key: object = place if settings is None else frozenset(settings.items())
        by_settings.setdefault(key, []).append(place)
    groups = list(by_settings.values())
    labels = _labels([(runs[places[0]][0], common[places[0]]) for places in groups])
    return list(zip(labels, groups, strict=True))


def _common(settings: dict[str, str] | None) -> dict[str, str] | None:
    if settings is None:
        return None
    return {key: value for key, value in settings.items() if key not in _RUN_KEYS}


def _labels(members: Sequence[tuple[str, dict[str, str] | None]]) -> list[str]:
    """Labels groups by the names of their runs, and by what differs where names are the same."""
    labels: list[str] = []
    for name, settings in members:
        alike = [other for other_name, other in members if other_name == name]
        label = name
        if len(alike) > 1 and settings is not None:
            keys = list(_differing(alike))[:_KEYS_IN_LABEL]
            texts = (f"{key.rpartition('.')[2]}={settings.get(key, _ABSENT)}" for key in keys)
            label = f"{name} ({', '.join(texts)})"
        label = cut(printable(label), _MOST_LABEL)
        number = sum(other == label or other.startswith(f"{label} #") for other in labels)
        labels.append(label if not number else f"{label} #{number + 1}")
    return labels


def _differing(settings: Sequence[dict[str, str] | None]) -> Iterator[str]:
    """Yields the keys whose values are not the same everywhere, as the configs have them."""
    known = [config for config in settings if config is not None]
    for key in dict.fromkeys(key for config in known for key in config):
        if len({config.get(key) for config in known}) > 1:
            yield key


def _differences(groups: Sequence[RunGroup]) -> list[list[str]]:
    known = [group.settings for group in groups]
    return [
        [key, *(_ABSENT if settings is None else settings.get(key, _ABSENT) for settings in known)]
        for key in _differing(known)
    ]


GROUP_COLUMNS: Final = (
    "config", "runs", "return, IQM (95 %)", "return, mean ± std", "trained policy, IQM (95 %)",
    "trained policy, mean ± std", "seconds", "steps/s",
)  # fmt: skip
RUN_COLUMNS: Final = (
    "config", "seed", "state", "steps", "return", "trained policy", "episodes", "seconds",
    "wall seconds", "steps/s", "folder",
)  # fmt: skip
_DROP: Final = ("return, mean ± std", "trained policy, mean ± std", "seconds", "steps/s")
_DROP_OF_RUN: Final = (
    "config", "episodes", "wall seconds", "seconds", "steps/s", "state", "steps",
)  # fmt: skip


def group_rows(comparison: Comparison) -> list[list[str]]:
    """Returns the cells of `GROUP_COLUMNS`, a row a group."""
    rows = []
    for group in comparison.groups:
        returned = group.estimate(lambda run: run.summary.return_mean)
        evaluated = group.estimate(lambda run: run.eval_return)
        seconds = group.estimate(lambda run: run.training_s)
        speed = group.estimate(lambda run: run.steps_per_s)
        cells = [group.label, str(len(group.runs))]
        for e in (returned, evaluated):
            missing = "" if e is None or e.count == len(group.runs) else f" of {e.count}"
            cells += [interval_text(e) + missing, _spread(e, ",.1f")]
        rows.append([*cells, _spread(seconds, ",.1f"), _spread(speed, ",.0f")])
    return rows


def run_rows(comparison: Comparison) -> list[list[str]]:
    """Returns the cells of `RUN_COLUMNS`, a row a run."""
    return [
        [
            label,
            number_text(run.summary.seed, "d"),
            run.summary.state,
            number_text(run.steps, ",.0f"),
            number_text(run.summary.return_mean, ",.1f"),
            number_text(run.eval_return, ",.1f"),
            number_text(run.eval_episodes, ",d"),
            number_text(run.training_s, ",.1f"),
            number_text(run.wall_s, ",.1f"),
            number_text(run.steps_per_s, ",.0f"),
            str(run.path),
        ]
        for label, run in comparison.runs
    ]


def interval_text(one: Estimate | None) -> str:
    """Returns the interquartile mean of a figure with its interval."""
    if one is None:
        return _ABSENT
    if one.low is None:
        return f"{one.iqm:,.1f}"
    return f"{one.iqm:,.1f} ({one.low:,.1f} to {one.high:,.1f})"


def _spread(e: Estimate | None, form: str) -> str:
    if e is None:
        return _ABSENT
    return format(e.mean, form) + ("" if e.std is None else f" ± {format(e.std, form)}")


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Prints the tables: groups, runs, and what sets configs apart."""
    print_table(console, "Runs", RUN_COLUMNS, run_rows(comparison), _DROP_OF_RUN)
    print_table(console, "Over seeds", GROUP_COLUMNS, group_rows(comparison), _DROP)
    if comparison.differences:
        columns = ["key", *(group.label for group in comparison.groups)]
        more = len(comparison.differences) - _MOST_DIFFERENCES
        title = "Differences of config" + (f" ({more} more are on the page)" if more > 0 else "")
        print_table(console, title, columns, comparison.differences[:_MOST_DIFFERENCES])
