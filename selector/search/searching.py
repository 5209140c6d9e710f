"""Looks for hyper-parameters by HyperBand or PBT; trials are runtime tasks, side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from gmi_drl import runtime
from gmi_drl.gmi import lease
from gmi_drl.launcher.colocated_runs import at_work
from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gmi_drl.launcher.paper_config import config as paper_config
from gmi_drl.launcher.plan.planning import importable
from gmi_drl.launcher.start.preload import preload_of
from gmi_drl.launcher.view.screen import ViewName, opened
from gmi_drl.placement import Config, ConfigError, counted, load_config
from gmi_drl.placement.config.yaml_text import write_yaml
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.selector.errors import SearchError
from gmi_drl.selector.plots.search_picture import draw_search
from gmi_drl.selector.record.search_folder import (
    SearchFolder,
    key_of,
    open_folder,
    replay,
    seconds_of,
)

from .faults import placement_faults
from .hyperband import hyperband
from .pbt import population_based
from .ranges import Ranges, applied
from .search_view import SearchView
from .trial_run import RunKey, TrialAlgorithm
from .trial_runner import TrialRunner

_SCHEDULE: Final = "# These are the values it ended with; search.png shows those that led there.\n"


@dataclass(frozen=True)
class SearchResult:
    """Holds how a search ended."""

    folder: Path
    best_config: Path  # launches as it is, with the best values
    values: dict[str, Any]  # the best, by key; of PBT those that the best member ended with
    return_mean: float | None  # of the last 100 episodes of the best run
    steps: int  # that it had trained
    checkpoint: Path  # its policy, for run.policy
    seconds: float  # of all searching, those before a resume included
    lines: list[dict[str, Any]]  # of the record: every run that ended or failed
    picture: Path | None
    resumed: bool = False  # an earlier search of this config was gone on with
    recalled: bool = False  # it was done already

    @property
    def failed(self) -> int:
        """Runs that failed."""
        return sum(line["kind"] == "failed" for line in self.lines)


def search(
    config: Config | Path | str | Mapping[str, Any],
    *,
    overrides: Iterable[str] = (),
    again: bool = False,
    view: ViewName = "auto",
) -> SearchResult:
    """Looks for the hyper-parameters of `config`'s section `search`, and returns the best.

    A search of the same config that was killed is gone on with, and one that is done is answered
    from its record; `again` begins anew. Raises ConfigError with every fault, and SearchError when
    nothing was found or the folder is in use. Leaves no process behind.
    """
    overrides = list(overrides)
    with terminate_as_interrupt():
        started = runtime.is_initialized()
        try:
            if not started:
                runtime.init(preload_of(config, overrides))
            lease.sweep()
            given = config.model_dump(mode="json") if isinstance(config, Config) else config
            source = Path(config) if isinstance(config, (str, Path)) else None
            resolved = load_config(given, paper_config.apply_to(overrides))
            beside = (Path.cwd() if source is None else source.parent).resolve()
            with importable(beside):
                faults = placement_faults(resolved)
            if faults:
                raise ConfigError(faults, None if source is None else str(source))
            with at_work(), open_folder(resolved, beside, again) as (folder, journal, note):
                algorithm = _algorithm_of(resolved)
                pending = replay(journal, algorithm)
                lines = [line for line in journal.lines if line["kind"] in ("ended", "failed")]
                recalled = any(line["kind"] == "finished" for line in journal.lines)
                resumed = bool(journal.lines) and not recalled
                if not recalled:
                    runner = TrialRunner(resolved, beside, folder, algorithm, lines)
                    with opened(view, partial(SearchView, resolved, algorithm.total)) as screen:
                        if note:
                            screen.note(note)
                        try:
                            runner.run(pending, screen, resumed)
                        except KeyboardInterrupt:
                            screen.note(
                                f"ended with {len(lines)} of {algorithm.total} runs done; the same "
                                "command goes on from here"
                            )
                            raise
                best = algorithm.best()
                result = _result_of(resolved, source, folder, lines, best)
                if not recalled:
                    folder.append("finished", best=best, total_s=result.seconds)
                return replace(result, resumed=resumed, recalled=recalled)
        finally:
            if not started:
                runtime.shutdown()


def _algorithm_of(config: Config) -> TrialAlgorithm:
    settings, total = config.search, config.run.total_steps
    assert settings is not None
    ranges = Ranges(settings.ranges, settings.seed)
    if settings.algorithm == "hyperband":
        return hyperband(ranges, total, settings.min_steps, settings.eta, settings.brackets)
    names = ("seed", "population", "interval_steps", "truncation", "perturb", "resample")
    return population_based(ranges, total, **{name: getattr(settings, name) for name in names})


def _result_of(
    config: Config,
    source: Path | None,
    folder: SearchFolder,
    lines: list[dict[str, Any]],
    best: RunKey | None,
) -> SearchResult:
    """Writes the best config and the picture; SearchError when all trials failed."""
    if best is None:
        first = lines[0]
        raise SearchError(
            f"{counted(len(lines), 'trial')}, and all failed. The first, trial "
            f"{first['trial']}: {first['text']}. More is in "
            f"{folder.run_folder(key_of(first)) / 'error.txt'}. Mend what it names, and begin anew "
            "with --again."
        )
    line = next(line for line in lines if key_of(line) == best)
    picture = None
    with contextlib.suppress(OSError, ValueError):  # the search itself is done
        picture = draw_search(folder.path / "search.png", config, lines, best)
    return SearchResult(
        folder=folder.path, best_config=_write_best(config, source, folder, line),
        values=dict(line["values"]), return_mean=line["return_mean"], steps=line["reached"],
        checkpoint=folder.path / str(line["checkpoint"]), seconds=seconds_of(lines), lines=lines,
        picture=picture,
    )  # fmt: skip


def _write_best(
    config: Config, source: Path | None, folder: SearchFolder, line: dict[str, Any]
) -> Path:
    """Writes a config that trains once more as the best trial did; where role modules are found."""
    assert config.search is not None
    seed = (config.run.seed + line["trial"]) % 2**32
    best = applied(config, line["values"], seed=seed)
    hardware = best.hardware.model_copy(update={"num_gpus": 1})
    data = best.model_copy(update={"hardware": hardware}).model_dump(mode="json")
    mean = line["return_mean"]
    head = (
        f"# Trial {line['trial']} of {folder.path}\n"
        f"# return {'-' if mean is None else format(mean, '.4g')} after {line['reached']:,} "
        f"steps, by {config.search.algorithm}; a trial has one device, so num_gpus is 1\n"
        + _SCHEDULE * (config.search.algorithm == "pbt")
        + "".join(f"# {key}: {value}\n" for key, value in line["values"].items())
    )
    path = folder.path / "best.yaml"
    if config.roles and source is not None:
        path = source.with_name(f"{source.stem}.best.yaml").absolute()
    data = {key: value for key, value in data.items() if value is not None}
    try:
        replace_file(path, head + write_yaml(data))
    except OSError as error:
        raise SearchError(
            f"{path} cannot be written ({error.strerror}). Make room; the same command then "
            "writes it from the record."
        ) from error
    return path
