"""Drives a search: deals the runs of trials to devices as runtime tasks, and writes them down."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl import runtime
from gmi_drl.launcher.folder.run_folder import METRICS
from gmi_drl.placement import Config, Device, counted, format_cores, layout_of
from gmi_drl.placement.config.yaml_text import write_yaml
from gmi_drl.roles.errors import RoleLoadError
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.selector.errors import SearchError
from gmi_drl.selector.record.search_folder import SearchFolder, key_of, score_of, seconds_of

from .faults import alone, trial_devices
from .ranges import applied
from .search_view import SearchProgress, SearchView
from .trial import TrialError, TrialJob, last_line, train_task
from .trial_run import RunKey, TrialAlgorithm, TrialRun

if TYPE_CHECKING:
    from gmi_drl.runtime import ObjectRef

_POLL_S: Final = 0.25  # between two looks at what trials have written
_ENDING_S: Final = 5.0  # for workers that were told to end
_HOPELESS: Final = 8  # runs that fail in a row, and none that does not ever, end a search
_RATE: Final = "algorithm.learning_rate"


@dataclass
class _Running:
    """A run that a task is training."""

    run: TrialRun
    device: Device
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
        self._running: dict[ObjectRef, _Running] = {}
        self._pruned: set[RunKey] = set()
        self._noted = False  # that a return is not known
        self._before_s, self._began_s = seconds_of(lines), time.monotonic()

    def run(self, pending: Mapping[RunKey, TrialRun], screen: SearchView, resumed: bool) -> None:
        """Trains until the algorithm is done. What is `pending` was asked for already."""
        assert self.config.search is not None
        free, waiting = trial_devices(self.config), list(pending.values())
        screen.note(f"search {self.folder.path}: {counted(len(free), 'trial')} side by side")
        if resumed:
            screen.note(f"going on: {len(self.lines)} of {self.algorithm.total} runs are done")
        sockets = Path(tempfile.mkdtemp(prefix="s", dir=runtime.run_directory()))
        try:
            while True:
                while free and (run := waiting.pop(0) if waiting else self._ask()):
                    self._submit(run, free.pop(0), sockets)
                if not self._running:
                    break
                ready, _ = runtime.wait(list(self._running), 1, _POLL_S)
                for ref in ready:
                    running = self._running.pop(ref)
                    free.append(running.device)
                    self._take(ref, running, screen)
                    self._prune()
                self._look(self.config.search.timeout_s)
                screen.show(self._progress())
                here = self.lines[self._earlier :]  # what failed before may be mended now
                if len(here) >= _HOPELESS and all(line["kind"] == "failed" for line in self.lines):
                    break
        finally:
            self._end()
            shutil.rmtree(sockets, ignore_errors=True)

    def _ask(self) -> TrialRun | None:
        if (run := self.algorithm.ask()) is not None:
            self.folder.append("asked", **asdict(run))
        return run

    def _submit(self, run: TrialRun, device: Device, sockets: Path) -> None:
        # A trial's values and its seed, and nothing that ends it early.
        config = applied(
            self.config, run.values, seed=(self.config.run.seed + run.trial) % 2**32,
            eval_episodes=0, target_return=None, profile=False,
        )  # fmt: skip
        folder = self.folder.run_folder(run.key)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "config.yaml", write_yaml(config.model_dump(mode="json")))
        start = next((line for line in self.lines if key_of(line) == run.start), None)
        # A checkpoint brings the learning rate that its optimizer and its schedule had.
        is_new = start is not None and run.values.get(_RATE) != start["values"].get(_RATE)
        job = TrialJob(
            name=f"trial {run.trial}", config=config, layout=layout_of(*alone(device, config)),
            steps=run.steps, folder=folder, sockets=sockets, role_folder=self._beside,
            resume=None if start is None else self.folder.path / str(start["checkpoint"]),
            learning_rate=run.values[_RATE] if is_new else None,
            session=f"{self.folder.path.name}/{run.trial}/{run.number}",
        )  # fmt: skip
        task = train_task.options(name=f"trial {run.trial}, run {run.number}")
        self._running[task.remote(job)] = _Running(run, device, time.monotonic())

    def _take(self, ref: ObjectRef, running: _Running, screen: SearchView) -> None:
        """Writes down how a run ended, and tells the algorithm."""
        facts = asdict(running.run)
        try:
            trained = runtime.get(ref)
        except (runtime.NotRunningError, runtime.ForkServerError):
            raise  # of the machine, not of the trial
        except (RoleLoadError, TrialError) as error:  # of every trial
            raise SearchError(f"no trial can be trained: {_short(error)}") from error
        except runtime.ActorRuntimeError as error:
            text = running.ended or _short(error)
            with contextlib.suppress(OSError):  # the record has the line that counts
                (self.folder.run_folder(running.run.key) / "error.txt").write_text(f"{error}\n")
            line = self.folder.append("failed", **facts, text=text, total_s=self._total_s)
        else:
            line = self.folder.append(
                "ended", **facts, return_mean=trained.return_mean, reached=trained.steps,
                iteration=trained.iteration, seconds=round(trained.seconds, 3),
                checkpoint=str(trained.checkpoint.relative_to(self.folder.path)),
                points=trained.points, total_s=self._total_s,
            )  # fmt: skip
        self.lines.append(line)
        self.algorithm.tell(running.run, score_of(line))
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
        """Looks how far the running trials are; one that says nothing any more is ended."""
        now_s = time.monotonic()
        for ref, running in self._running.items():
            line = last_line(self.folder.run_folder(running.run.key) / METRICS) or {}
            steps = int(line.get("steps", 0))
            if steps not in (0, running.steps):
                running.steps, running.since_s = steps, now_s
                running.return_mean = line.get("return_mean")
            elif now_s - running.since_s > timeout_s and not running.ended:
                running.ended = (
                    f"trial {running.run.trial} has written no metrics for {timeout_s:g} s "
                    "(search.timeout_s); it was ended"
                )
                runtime.cancel(ref, force=True)

    def _prune(self) -> None:
        """Deletes checkpoints that nobody goes on from any more."""
        kept = self.algorithm.kept()
        kept |= {running.run.key for running in self._running.values()}
        for key in {key_of(line) for line in self.lines} - kept - self._pruned:
            shutil.rmtree(self.folder.run_folder(key) / "checkpoints", ignore_errors=True)
            self._pruned.add(key)

    def _end(self) -> None:
        """Ends the trials that run; a later search goes on with them."""
        for ref in self._running:
            runtime.cancel(ref, force=True)
        if self._running:
            runtime.wait(list(self._running), len(self._running), _ENDING_S)
        self._running.clear()

    @property
    def _total_s(self) -> float:
        return round(self._before_s + time.monotonic() - self._began_s, 3)

    def _progress(self) -> SearchProgress:
        best, failed = self.algorithm.best(), sum(line["kind"] == "failed" for line in self.lines)
        line = next((line for line in self.lines if key_of(line) == best), None)
        now = [(o.run, o.steps, o.return_mean, _shown(o.device)) for o in self._running.values()]
        return SearchProgress(
            done=len(self.lines), failed=failed, total=self.algorithm.total, running=now, best=line,
            seconds=self._total_s,
        )  # fmt: skip


def _shown(device: Device) -> str:
    return f"cores {format_cores(device.cores)}" if device.kind == "cpu" else device.name


def _short(error: BaseException) -> str:
    """Returns what a failed task said, in a line: of a traceback the last."""
    if isinstance(error, runtime.TaskError):
        return error.remote_traceback.rstrip().splitlines()[-1]
    return str(error).splitlines()[0]
