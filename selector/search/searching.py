"""`search`: hyper-parameters by HyperBand or PBT; trials are runtime tasks, side by side.

The driver deals out devices, asks the algorithm what to train, and tells it how that ended. It
never imports torch. Whatever becomes of a trial, the search goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gmi_drl import runtime
from gmi_drl.gmi import lease
from gmi_drl.launcher.colocated_runs import at_work
from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gmi_drl.launcher.paper_config import config as paper_config
from gmi_drl.launcher.plan.import_path import importable
from gmi_drl.launcher.start.preload import preload_of
from gmi_drl.launcher.view.view import ViewName
from gmi_drl.placement import Config, ConfigError, load_config
from gmi_drl.selector.record.search_folder import open_folder
from gmi_drl.selector.record.search_record import SearchError, replay

from .devices import placement_faults
from .hyperband import HyperBand
from .pbt import Population
from .ranges import Ranges
from .result import SearchResult, result_of
from .search_view import open_search_view, print_search
from .stint import SearchAlgorithm
from .trials import Trials

__all__ = ["SearchError", "SearchResult", "print_search", "search"]


def search(
    config: Config | Path | str | Mapping[str, Any],
    *,
    overrides: Iterable[str] = (),
    again: bool = False,
    view: ViewName = "auto",
) -> SearchResult:
    """Look for the hyper-parameters of `config`'s section `search`, and return the best.

    A search of the same config that was killed is gone on with, and one that is done is answered
    from its record; `again` begins anew. A trial that fails never ends the search. Raises
    ConfigError with every fault, and SearchError when nothing was found or the folder is in use.
    Leaves no process behind; `best.yaml`, the record and a picture lie in the search's folder.
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
            with at_work(), open_folder(resolved, beside, again) as (folder, recorded, note):
                algorithm = algorithm_of(resolved)
                pending = replay(recorded, algorithm)
                lines = [line for line in recorded.lines if line["kind"] != "asked"]
                recalled = recorded.finished is not None
                resumed = bool(recorded.lines) and not recalled
                if not recalled:
                    trials = Trials(resolved, beside, folder, algorithm, lines)
                    with open_search_view(view, resolved, algorithm.total) as screen:
                        if note:
                            screen.note(note)
                        try:
                            trials.run(pending, screen, resumed)
                        except KeyboardInterrupt:
                            screen.note(_left(len(lines), algorithm.total))
                            raise
                best = algorithm.best()
                result = result_of(
                    resolved, source, folder, lines, best, resumed=resumed, recalled=recalled
                )
                if not recalled:
                    folder.append("finished", best=best, total_s=result.seconds)
                return result
        finally:
            if not started:
                runtime.shutdown()


def _left(done: int, total: int) -> str:
    return f"ended with {done} of {total} stints done; the same command goes on from here"


def algorithm_of(config: Config) -> SearchAlgorithm:
    """The algorithm of a config's `search` section, at its beginning."""
    settings, total = config.search, config.run.total_steps
    assert settings is not None
    ranges = Ranges(settings.ranges, settings.seed)
    if settings.algorithm == "hyperband":
        return HyperBand(ranges, total, settings.min_steps, settings.eta, settings.brackets)
    return Population(
        ranges,
        total,
        seed=settings.seed,
        population=settings.population,
        interval_steps=settings.interval_steps,
        truncation=settings.truncation,
        perturb=settings.perturb,
        resample=settings.resample,
    )
