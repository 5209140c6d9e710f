"""Looks for hyper-parameters by HyperBand or PBT; trials train in GMIs, side by side."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gmi_drl import runtime
from gmi_drl.gmi import GmiDied, lease
from gmi_drl.gmi.backends.mps import shared_daemons
from gmi_drl.launcher.colocated_runs import at_work
from gmi_drl.launcher.folder.run_folder import METRICS, last_metrics
from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gmi_drl.launcher.paper_config import config as paper_config
from gmi_drl.launcher.plan.user_modules import modules_beside
from gmi_drl.launcher.start.preload import preload_of
from gmi_drl.launcher.view.view import ViewName, opened
from gmi_drl.placement import (
    Config,
    ConfigError,
    Topology,
    counted,
    format_cores,
    layout_of,
    load_config,
)
from gmi_drl.placement.config.search import USED_BY
from gmi_drl.placement.config.yaml_text import write_yaml
from gmi_drl.roles.errors import RoleLoadError
from gmi_drl.roles.loading import importable
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.selector.errors import SearchError
from gmi_drl.selector.plots.search_picture import draw_search
from gmi_drl.selector.record.search_folder import (
    SearchFolder,
    key_of,
    open_folder,
    replay,
    score_of,
    seconds_of,
)

from .faults import explained, gpus_of_servers, placed, placement_faults, trial_topologies
from .hyperband import hyperband
from .pbt import PopulationBased
from .ranges import Ranges, applied
from .search_view import SearchProgress, SearchView
from .trial import TrialEnded, TrialError, TrialGmis, TrialJob
from .trial_run import RunKey, TrialAlgorithm, TrialRun

_POLL_S: Final = 0.25  # between two looks at what trials have written
_HOPELESS: Final = 8  # runs that fail in a row, and none that does not ever, end a search
_RATE: Final = "algorithm.learning_rate"


@dataclass
class _Running:
    """Holds a run that trains."""

    run: TrialRun
    since_s: float  # when its metrics were last seen to grow
    steps: int = 0
    return_mean: float | None = None
    ended: str = ""  # why it was ended from here


class TrialRunner:
    """Trains what the algorithm asks for; writes what becomes of it to journal and `lines`."""

    def __init__(
        self,
        config: Config,
        beside: Path,
        folder: SearchFolder,
        algorithm: TrialAlgorithm,
        lines: list[dict[str, Any]],
    ) -> None:
        self.config, self.folder, self.algorithm, self.lines = config, folder, algorithm, lines
        self._beside, self._earlier = beside, len(lines)
        self._running: dict[TrialGmis, _Running] = {}
        self._devices: dict[TrialGmis, Topology] = {}  # that each has
        self._pruned: set[RunKey] = set()
        self._noted = False  # that a return is not known
        self._before_s, self._began_s = seconds_of(lines), time.monotonic()

    def run(self, pending: Mapping[RunKey, TrialRun], screen: SearchView, resumed: bool) -> None:
        """Trains until the algorithm is done. What is `pending` was asked for already."""
        assert self.config.search is not None
        devices, logs = trial_topologies(self.config), self.folder.path / "logs"
        self._devices = {TrialGmis(f"place{i}", logs): t for i, t in enumerate(devices)}
        free, waiting = list(self._devices), list(pending.values())
        screen.note(f"search {self.folder.path}: {counted(len(free), 'trial')} side by side")
        if resumed:
            screen.note(f"going on: {len(self.lines)} of {self.algorithm.total} runs are done")
        sockets = Path(tempfile.mkdtemp(prefix="s", dir=runtime.run_directory()))
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, sockets, ignore_errors=True)
            stack.enter_context(_sharing(gpus_of_servers(devices, self.config)))
            stack.callback(self._end)  # before the daemons
            while True:
                while free and (run := waiting.pop(0) if waiting else self._ask()):
                    try:
                        config = self._config_of(run)
                    except ValidationError as error:
                        self._failed(run, str(explained(self.config, error)), error, screen)
                        continue
                    self._begin(run, config, free.pop(0), sockets)
                if not self._running:
                    break
                runtime.wait([ref for gmis in self._running for ref in gmis.to_come()], 1, _POLL_S)
                self._look(self.config.search.timeout_s)
                for gmis in list(self._running):
                    if self._has_ended(gmis, screen):
                        free.append(gmis)
                        self._prune()
                screen.show(self._progress())
                lines = self.lines[self._earlier :]  # what failed before may be mended now
                if len(lines) >= _HOPELESS and all(line["kind"] == "failed" for line in self.lines):
                    break

    def _ask(self) -> TrialRun | None:
        if (run := self.algorithm.ask()) is not None:
            self.folder.append("asked", **asdict(run))
        return run

    def _config_of(self, run: TrialRun) -> Config:
        """Returns the config with a trial's values and its seed, and nothing that ends it early.

        ValidationError where a value is in its range, but does not fit the other values.
        """
        return applied(
            self.config, run.values, seed=(self.config.run.seed + run.trial) % 2**32,
            eval_episodes=0, target_return=None, profile=False,
        )  # fmt: skip

    def _begin(self, run: TrialRun, config: Config, gmis: TrialGmis, sockets: Path) -> None:
        folder = self.folder.run_folder(run.key)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "config.yaml", write_yaml(config.model_dump(mode="json")))
        start = next((line for line in self.lines if key_of(line) == run.start), None)
        # A checkpoint brings the learning rate that its optimizer and its schedule had.
        is_new = start is not None and run.values.get(_RATE) != start["values"].get(_RATE)
        assert self.config.search is not None
        topology, parts = self._devices[gmis], self.config.search.trials_per_device
        layout = layout_of(placed(topology, config, parts), topology)
        job = TrialJob(
            name=f"trial {run.trial}", config=config, layout=layout,
            steps=run.steps, folder=folder, sockets=sockets, role_folder=self._beside,
            resume=None if start is None else self.folder.path / str(start["checkpoint"]),
            learning_rate=run.values[_RATE] if is_new else None,
            session=f"{self.folder.path.name}/{run.trial}/{run.number}",
            copy=run.number if run.start is not None and run.start[0] != run.trial else 0,
        )  # fmt: skip
        self._running[gmis] = _Running(run, time.monotonic())
        gmis.begin(job)

    def _has_ended(self, gmis: TrialGmis, screen: SearchView) -> bool:
        """Tells whether a run has ended; if so, records how and tells the algorithm."""
        running = self._running[gmis]
        try:
            if running.ended:
                raise TrialEnded(running.ended)
            if (trained := gmis.look()) is None:
                return False
        except (runtime.NotRunningError, runtime.ForkServerError):
            raise  # of the machine, not of the trial
        except (RoleLoadError, TrialError) as error:  # of every trial
            raise SearchError(f"no trial can be trained: {_short(error)}") from error
        except (runtime.ActorRuntimeError, GmiDied, TrialEnded) as error:
            del self._running[gmis]
            self._failed(running.run, _short(error), error, screen)
        else:
            line = self.folder.append(
                "ended", **asdict(running.run), return_mean=trained.return_mean,
                reached=trained.steps, iteration=trained.iteration,
                seconds=round(trained.seconds, 3),
                checkpoint=str(trained.checkpoint.relative_to(self.folder.path)),
                points=trained.points, total_s=self._total_s,
            )  # fmt: skip
            del self._running[gmis]
            self._tell(running.run, line, screen)
        return True

    def _failed(self, run: TrialRun, text: str, error: Exception, screen: SearchView) -> None:
        """Writes down why a run failed, `text` in a line, and tells the algorithm."""
        folder = self.folder.run_folder(run.key)
        with contextlib.suppress(OSError):  # the record has the line that counts
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "error.txt").write_text(f"{error}\n")
        line = self.folder.append("failed", **asdict(run), text=text, total_s=self._total_s)
        self._tell(run, line, screen)

    def _tell(self, run: TrialRun, line: dict[str, Any], screen: SearchView) -> None:
        """Tells the algorithm and the reader how a run ended, which is written down."""
        self.lines.append(line)
        self.algorithm.tell(run, score_of(line))
        screen.ended(line, self._progress())
        if line.get("return_mean", 0.0) is None and not self._noted:
            self._noted = True
            assert self.config.search is not None
            by_band = self.config.search.algorithm == "hyperband"
            key = "min_steps" if by_band else "interval_steps"
            screen.note(
                f"no episode of trial {line['trial']} has ended in {line['reached']:,} steps: its "
                "return is not known, and where that is so of all, who trains on is by chance. "
                f"Raise search.{key}, or lower env.num_env."
            )

    def _look(self, timeout_s: float) -> None:
        """Reads how far the running trials are, and ends those that are silent for too long."""
        now_s = time.monotonic()
        for gmis, running in self._running.items():
            line = last_metrics(self.folder.run_folder(running.run.key) / METRICS)
            steps = int(line.get("steps", 0))
            if steps not in (0, running.steps):
                running.steps, running.since_s = steps, now_s
                running.return_mean = line.get("return_mean")
            elif now_s - running.since_s > timeout_s and not running.ended:
                running.ended = (
                    f"trial {running.run.trial} has written no metrics for {timeout_s:g} s "
                    "(search.timeout_s); it was ended"
                )
                gmis.close(kill=True)

    def _prune(self) -> None:
        """Deletes checkpoints that nobody goes on from any more."""
        kept = self.algorithm.kept()
        kept |= {running.run.key for running in self._running.values()}
        for key in {key_of(line) for line in self.lines} - kept - self._pruned:
            shutil.rmtree(self.folder.run_folder(key) / "checkpoints", ignore_errors=True)
            self._pruned.add(key)

    def _end(self) -> None:
        """Ends all processes; a later search goes on with the trials that run."""
        with contextlib.ExitStack() as stack:
            for gmis in self._devices:
                stack.callback(gmis.close, kill=gmis in self._running)
        self._running.clear()

    @property
    def _total_s(self) -> float:
        return round(self._before_s + time.monotonic() - self._began_s, 3)

    def _progress(self) -> SearchProgress:
        best, failed = self.algorithm.best(), sum(line["kind"] == "failed" for line in self.lines)
        line = next((line for line in self.lines if key_of(line) == best), None)
        now = [
            (running.run, running.steps, running.return_mean, _devices_text(self._devices[gmis]))
            for gmis, running in self._running.items()
        ]
        return SearchProgress(
            done=len(self.lines), failed=failed, total=self.algorithm.total, running=now, best=line,
            seconds=self._total_s,
        )  # fmt: skip


@contextlib.contextmanager
def _sharing(uuids: Collection[str]) -> Iterator[None]:
    """Makes the GMIs of all trials on each of these GPUs clients of one MPS server."""
    with shared_daemons(uuids) as variables:
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                del os.environ[name]


def _devices_text(topology: Topology) -> str:
    devices = topology.devices
    if devices[0].kind == "cpu":
        return f"cores {format_cores([core for device in devices for core in device.cores])}"
    return ", ".join(device.name for device in devices)


def _short(error: BaseException) -> str:
    """Returns what a failed task said, in a line: of a traceback what follows its last frame."""
    if not isinstance(error, runtime.TaskError):
        return str(error).splitlines()[0]
    lines = error.remote_traceback.rstrip().splitlines()
    frame = max((i for i, line in enumerate(lines) if line.startswith('  File "')), default=-1)
    after = itertools.dropwhile(lambda line: line.startswith("    "), lines[frame + 1 :])
    return " ".join(line.strip() for line in after) or lines[-1]


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
        """Counts the runs that failed."""
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
            source = Path(config) if isinstance(config, (str, Path)) else None
            resolved = load_config(config, paper_config.apply_to(overrides))
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
    names = [name for name, user in USED_BY.items() if user == "pbt"]
    values = {name: getattr(settings, name) for name in ("seed", *names)}
    return PopulationBased(ranges, total, **values)


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
    """Writes a config that trains as the best trial did, beside the modules that it names."""
    assert config.search is not None
    seed = (config.run.seed + line["trial"]) % 2**32
    best = applied(config, line["values"], seed=seed)
    hardware = best.hardware.model_copy(update={"num_gpus": config.search.devices})
    data = best.model_copy(update={"hardware": hardware}).model_dump(mode="json")
    mean = line["return_mean"]
    head = (
        f"# Trial {line['trial']} of {folder.path}\n"
        f"# return {'-' if mean is None else format(mean, '.4g')} after {line['reached']:,} "
        f"steps, by {config.search.algorithm}; num_gpus is the devices of a trial\n"
        + _SCHEDULE * (config.search.algorithm == "pbt")
        + "".join(f"# {key}: {value}\n" for key, value in line["values"].items())
    )
    path = folder.path / "best.yaml"
    if source is not None and modules_beside(config, source.parent):  # where they are found
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
