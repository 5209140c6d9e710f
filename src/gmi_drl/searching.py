"""`search`: hyper-parameters by HyperBand or PBT; trials are runtime tasks, side by side.

The driver deals out devices, asks the algorithm what to train, and tells it how that ended. It
never imports torch. Whatever becomes of a trial, the search goes on.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from gmi_drl import runtime
from gmi_drl.gmi import lease
from gmi_drl.placement import Config, ConfigError, load_config
from gmi_drl.roles.errors import RoleLoadError
from gmi_drl.runtime.kept import replace_file
from gmi_drl.selector.hyperband import HyperBand
from gmi_drl.selector.pbt import Population
from gmi_drl.selector.ranges import Ranges, applied
from gmi_drl.selector.stint import Key, SearchAlgorithm, Stint
from gmi_drl.selector.trial import METRICS, TrialError, TrialJob, last_line, train_task

from .interrupts import terminate_as_interrupt
from .paper_config import config as paper_config
from .preload import PRELOAD
from .search_devices import Slot, layout_on, placement_faults, slots_of
from .search_picture import draw_search
from .search_record import (
    SearchError,
    SearchFolder,
    cut_torn_line,
    lock,
    open_folder,
    replay,
    score_of,
)
from .search_view import Progress, SearchView, open_search_view, print_search
from .view import ViewName

if TYPE_CHECKING:
    from gmi_drl.runtime import ObjectRef

__all__ = ["SearchError", "SearchResult", "print_search", "search"]

_POLL_S: Final = 0.25  # between two looks at what trials have written
_ENDING_S: Final = 5.0  # for workers that were told to end
_HOPELESS: Final = 8  # stints that fail, and none that does not, end a search
_RATE: Final = "algorithm.learning_rate"
_SCHEDULE: Final = "# These are the values it ended with; search.png shows those that led there.\n"


@dataclass(frozen=True)
class SearchResult:
    """How a search ended."""

    folder: Path
    best_config: Path  # launches as it is, with the best values
    values: dict[str, Any]  # the best, by key; of PBT those that the best member ended with
    return_mean: float | None  # of the last 100 episodes of the best stint
    steps: int  # that it had trained
    checkpoint: Path  # its policy, for run.policy
    seconds: float  # of all searching, those before a resume included
    lines: list[dict[str, Any]]  # of the record: every stint that ended or failed
    picture: Path | None
    resumed: bool  # an earlier search of this config was gone on with, or was done

    @property
    def failed(self) -> int:
        """Stints that failed."""
        return sum(line["kind"] == "failed" for line in self.lines)


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
    with terminate_as_interrupt():
        started = runtime.is_initialized()
        try:
            if not started:
                runtime.init(PRELOAD)
            lease.sweep()
            given = config.model_dump(mode="json") if isinstance(config, Config) else config
            source = Path(config) if isinstance(config, (str, Path)) else None
            resolved = load_config(given, paper_config.apply_to(overrides))
            if faults := placement_faults(resolved):
                raise ConfigError(faults, None if source is None else str(source))
            folder, recorded = open_folder(resolved, again)
            with lock(folder) as had:
                if had.holder:
                    raise SearchError(
                        f"{folder.path} is being searched by {had.holder}. Wait for it, or end it."
                    )
                cut_torn_line(folder, recorded)
                running = _Search(resolved, source, folder)
                pending = replay(recorded, running.algorithm)
                running.lines = [line for line in recorded.lines if line["kind"] != "asked"]
                resumed = bool(recorded.lines)
                running.before_s = _last_seconds(recorded.lines)
                if recorded.finished is None:
                    with open_search_view(view, resolved, running.algorithm.total) as screen:
                        running.run(pending, screen, resumed)
                return running.result(resumed, recorded.finished is None)
        finally:
            if not started:
                runtime.shutdown()


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


@dataclass
class _Running:
    """A stint that a task is training."""

    stint: Stint
    slot: Slot
    since_s: float  # when its metrics were last seen to grow
    steps: int = 0
    return_mean: float | None = None
    ended: str = ""  # why it was ended from here


@dataclass
class _Search:
    """A search at work."""

    config: Config
    source: Path | None
    folder: SearchFolder
    lines: list[dict[str, Any]] = field(default_factory=list)
    before_s: float = 0.0

    def __post_init__(self) -> None:
        self.algorithm = algorithm_of(self.config)
        self._values: dict[Key, Mapping[str, Any]] = {}
        self._running: dict[ObjectRef, _Running] = {}
        self._pruned: set[Key] = set()
        self._began_s = time.monotonic()

    # The loop ------------------------------------------------------------------------------

    def run(self, pending: Mapping[Key, Stint], screen: SearchView, resumed: bool) -> None:
        """Train until the algorithm is done. What is `pending` was asked for already."""
        assert self.config.search is not None
        self._values |= {_key(line): line["values"] for line in self.lines}
        free, waiting = slots_of(self.config), list(pending.values())
        screen.note(f"search {self.folder.path}: {len(free)} trials side by side")
        if resumed:
            screen.note(f"going on: {len(self.lines)} of {self.algorithm.total} stints are done")
        sockets = Path(tempfile.mkdtemp(prefix="s", dir=runtime.run_directory()))
        try:
            while True:
                while free and (stint := waiting.pop(0) if waiting else self._ask()):
                    self._submit(stint, free.pop(0), sockets)
                if not self._running:
                    break
                ready, _ = runtime.wait(list(self._running), 1, _POLL_S)
                for ref in ready:
                    its = self._running.pop(ref)
                    free.append(its.slot)
                    self._take(ref, its, screen)
                    self._prune()
                self._look(self.config.search.timeout_s)
                screen.show(self._progress())
                if self._is_hopeless():
                    break
        finally:
            self._end()
            shutil.rmtree(sockets, ignore_errors=True)

    def _ask(self) -> Stint | None:
        stint = self.algorithm.ask()
        if stint is not None:
            self.folder.append("asked", **_facts(stint))
        return stint

    def _submit(self, stint: Stint, slot: Slot, sockets: Path) -> None:
        config = self._config_of(stint)
        folder = self.folder.stint(stint.key)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "config.yaml", yaml.safe_dump(config.model_dump(mode="json")))
        self._values[stint.key] = stint.values
        rate = None
        if stint.start is not None and _RATE in stint.values:
            # A checkpoint brings the learning rate that its optimizer and its schedule had.
            before = self._values[stint.start][_RATE]
            rate = stint.values[_RATE] if stint.values[_RATE] != before else None
        job = TrialJob(
            f"trial {stint.trial}",
            config,
            layout_on(slot, config),
            stint.steps,
            folder,
            None if stint.start is None else self._checkpoint(stint.start),
            rate,
            f"{self.folder.path.name}/{stint.trial}/{stint.number}",
            sockets,
            self._beside,
        )
        task = train_task.options(name=f"trial {stint.trial}, stint {stint.number}")
        self._running[task.remote(job)] = _Running(stint, slot, time.monotonic())

    def _take(self, ref: ObjectRef, its: _Running, screen: SearchView) -> None:
        """Write down how a stint ended, and tell the algorithm."""
        facts = _facts(its.stint)
        try:
            trained = runtime.get(ref)
        except (runtime.NotRunningError, runtime.ForkServerError):
            raise  # of the machine, not of the trial
        except (RoleLoadError, TrialError) as error:  # of every trial
            raise SearchError(f"no trial can be trained: {_short(error)}") from error
        except runtime.ActorRuntimeError as error:
            text = its.ended or _short(error)
            with contextlib.suppress(OSError):  # the record has the line that counts
                (self.folder.stint(its.stint.key) / "error.txt").write_text(f"{error}\n")
            line = self.folder.append("failed", **facts, text=text, total_s=self._total_s)
        else:
            line = self.folder.append(
                "ended",
                **facts,
                return_mean=trained.return_mean,
                reached=trained.steps,
                iteration=trained.iteration,
                seconds=round(trained.seconds, 3),
                checkpoint=str(trained.checkpoint.relative_to(self.folder.path)),
                points=trained.points,
                total_s=self._total_s,
            )
        self.lines.append(line)
        self.algorithm.tell(its.stint.key, score_of(line))
        screen.ended(line, self._progress())

    def _look(self, timeout_s: float) -> None:
        """How far the running trials are; one that says nothing any more is ended."""
        now_s = time.monotonic()
        for ref, its in self._running.items():
            line = last_line(self.folder.stint(its.stint.key) / METRICS)
            steps = int(line.get("steps", 0)) if line is not None else 0
            if steps != its.steps and line is not None:
                its.steps, its.since_s = steps, now_s
                its.return_mean = line.get("return_mean")
            elif now_s - its.since_s > timeout_s and not its.ended:
                its.ended = (
                    f"trial {its.stint.trial} has written no metrics for {timeout_s:g} s "
                    "(search.timeout_s); it was ended"
                )
                runtime.cancel(ref, force=True)

    def _prune(self) -> None:
        """Checkpoints that nobody goes on from any more."""
        kept = self.algorithm.kept()
        kept |= {its.stint.key for its in self._running.values()}
        for key in {_key(line) for line in self.lines} - kept - self._pruned:
            shutil.rmtree(self.folder.stint(key) / "checkpoints", ignore_errors=True)
            self._pruned.add(key)

    def _end(self) -> None:
        """End the trials that run; a later search goes on with them."""
        refs = list(self._running)
        for ref in refs:
            runtime.cancel(ref, force=True)
        if refs:
            runtime.wait(refs, len(refs), _ENDING_S)
        self._running.clear()

    def _is_hopeless(self) -> bool:
        if len(self.lines) < _HOPELESS:
            return False
        return all(line["kind"] == "failed" for line in self.lines)

    # What comes of it ----------------------------------------------------------------------

    def result(self, resumed: bool, is_new: bool) -> SearchResult:
        """The best; SearchError when all trials failed."""
        best = self.algorithm.best()
        if best is None:
            first = self.lines[0]
            raise SearchError(
                f"{len(self.lines)} trials were begun, and all failed. The first, trial "
                f"{first['trial']}: {first['text']}. More is in "
                f"{self.folder.stint(_key(first)) / 'error.txt'}."
            )
        line = next(line for line in self.lines if _key(line) == best)
        picture = None
        with contextlib.suppress(OSError, ValueError):  # the search itself is done
            picture = draw_search(self.folder.path / "search.png", self.config, self.lines, best)
        written = self._write_best(line)
        if is_new:
            self.folder.append("finished", best=list(best), total_s=self._total_s)
        return SearchResult(
            self.folder.path,
            written,
            dict(line["values"]),
            line["return_mean"],
            line["reached"],
            self._checkpoint(best),
            _last_seconds(self.lines),
            self.lines,
            picture,
            resumed,
        )

    def _write_best(self, line: dict[str, Any]) -> Path:
        """A config that trains once more as the best trial did; where role modules are found."""
        assert self.config.search is not None
        seed = (self.config.run.seed + line["trial"]) % 2**32
        best = applied(self.config, line["values"], seed=seed)
        hardware = best.hardware.model_copy(update={"num_gpus": 1})
        data = best.model_copy(update={"hardware": hardware}).model_dump(mode="json")
        mean = line["return_mean"]
        head = (
            f"# Trial {line['trial']} of {self.folder.path}\n"
            f"# return {'-' if mean is None else format(mean, '.4g')} after {line['reached']:,} "
            f"steps, by {self.config.search.algorithm}; a trial has one device, so num_gpus is 1\n"
            + _SCHEDULE * (self.config.search.algorithm == "pbt")
            + "".join(f"# {key}: {value}\n" for key, value in line["values"].items())
        )
        path = self.folder.path / "best.yaml"
        if self.config.roles and self.source is not None:
            path = self.source.with_name(f"{self.source.stem}.best.yaml").absolute()
        data = {key: value for key, value in data.items() if value is not None}
        try:
            replace_file(path, head + yaml.safe_dump(data, sort_keys=False))
        except OSError as error:
            raise SearchError(
                f"{path} cannot be written ({error.strerror}). Make room; the same command then "
                "writes it from the record."
            ) from error
        return path

    # Small things --------------------------------------------------------------------------

    @property
    def _total_s(self) -> float:
        return round(self.before_s + time.monotonic() - self._began_s, 3)

    @property
    def _beside(self) -> Path:
        return (self.source.parent if self.source is not None else Path.cwd()).resolve()

    def _config_of(self, stint: Stint) -> Config:
        """A trial's config: its values and its seed, and nothing that ends it early."""
        return applied(
            self.config,
            stint.values,
            seed=(self.config.run.seed + stint.trial) % 2**32,
            eval_episodes=0,
            target_return=None,
        )

    def _checkpoint(self, key: Key) -> Path:
        line = next(line for line in self.lines if _key(line) == key)
        return self.folder.path / str(line["checkpoint"])

    def _progress(self) -> Progress:
        best = self.algorithm.best()
        line = next((line for line in self.lines if _key(line) == best), None)
        running = [
            (its.stint, its.steps, its.return_mean, its.slot.name) for its in self._running.values()
        ]
        failed = sum(line["kind"] == "failed" for line in self.lines)
        return Progress(len(self.lines), failed, self.algorithm.total, running, line, self._total_s)


def _facts(stint: Stint) -> dict[str, Any]:
    """A stint as the record has it."""
    return {
        "trial": stint.trial,
        "number": stint.number,
        "bracket": stint.bracket,
        "values": dict(stint.values),
        "steps": stint.steps,
        "start": None if stint.start is None else list(stint.start),
    }


def _key(line: Mapping[str, Any]) -> Key:
    return int(line["trial"]), int(line["number"])


def _last_seconds(lines: Iterable[Mapping[str, Any]]) -> float:
    return max((float(line.get("total_s", 0.0)) for line in lines), default=0.0)


def _short(error: BaseException) -> str:
    """What a failed task said, in a line: of a traceback the last."""
    if isinstance(error, runtime.TaskError):
        return error.remote_traceback.rstrip().splitlines()[-1]
    return str(error).splitlines()[0]
