"""Trains several seeds of a config, side by side as devices allow, and compares their runs.

Each seed has a launcher process of its own, which is told to stop as Ctrl-C tells one, and stops
when this process dies.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import cloudpickle  # type: ignore[import-untyped]

from gmi_drl.launcher.folder.run_folder import RunFolder, RunFolderError, resume_command
from gmi_drl.launcher.interrupts import every_signal_counts, terminate_as_interrupt
from gmi_drl.launcher.paper_config import config as paper_config
from gmi_drl.launcher.plan.planning import planned
from gmi_drl.launcher.view.tables import printable, printable_lines
from gmi_drl.launcher.view.view import Screen, ViewName
from gmi_drl.placement import Config, ConfigError, counted, load_config
from gmi_drl.placement.checks.config import one_machine_faults
from gmi_drl.roles.loading import importable
from gmi_drl.runtime.cache_files import replace_file

from .child import SeedOutcome
from .shares import DeviceShare, SeedsError, device_shares, shared_gpus

if TYPE_CHECKING:
    from gmi_drl.launcher.start.jobs import Resolve
    from gmi_drl.launcher.start.result import RunResult
    from gmi_drl.report.comparison.groups import Comparison

_CHILD: Final = "gmi_drl.seeds.child"  # the module that is run for each launch
_POLL_S: Final = 0.2
_ENDING_S: Final = 60.0  # from the second Ctrl-C on; launches give all back within 30 s
_MOST_SEEDS: Final = 1000
_LAST_LINES: Final = 40  # of its output, that are kept of a launch
_BAD_INPUT: Final = 2  # an exit code: the other seeds would be refused too


@dataclass(frozen=True)
class SeedRun:
    """Says how one seed ended."""

    seed: int
    state: str  # finished, stopped, failed; or not started, when all were stopped before
    folder: Path | None = None  # None: it has none yet
    result: RunResult | None = None  # without what roles have returned
    error: str = ""


@dataclass(frozen=True)
class SeedsResult:
    """Says how all seeds ended, in their order, and compares them, if any has metrics."""

    runs: list[SeedRun]
    comparison: Comparison | None
    page: Path | None  # the comparison as HTML

    @property
    def state(self) -> str:
        """Returns finished, or else failed or stopped, if any was."""
        states = {run.state for run in self.runs}
        if states & {"stopped", "not started"}:
            return "stopped"
        return "failed" if "failed" in states else "finished"


def launch_seeds(
    config: Config | Path | str | Mapping[str, Any],
    count: int,
    *,
    parallel: int | None,
    overrides: Iterable[str],
    import_path: Path | None,
    view: ViewName,
    options: Mapping[str, Any],
    resolve: Resolve,
) -> SeedsResult:
    """Trains seeds run.seed to run.seed + count - 1, as `gmi_drl.launch` has it."""
    if not 1 <= count <= _MOST_SEEDS:
        raise SeedsError(f"seeds={count}; it must be from 1 to {_MOST_SEEDS}.")
    if parallel is not None and parallel < 1:
        raise SeedsError(f"parallel={parallel}; it must be 1 or more.")
    source = str(config) if isinstance(config, (str, Path)) else None
    resolved = load_config(config, paper_config.apply_to(overrides))
    if faults := one_machine_faults(resolved, "training several seeds"):
        raise ConfigError(faults, source)
    first = resolved.run.seed
    if first + count > 2**32:
        raise SeedsError(f"run.seed={first} and {count} seeds: the last is beyond 2**32 - 1.")
    import_path = (import_path or (Path(source).parent if source else Path.cwd())).resolve()
    with terminate_as_interrupt():
        shares = device_shares(resolved, count, parallel)
        screen = Screen(view)
        if not resolved.is_resolved:
            if len(shares) > 1:
                raise SeedsError(
                    f"seeds side by side ({len(shares)}): the config says auto, which tuning finds "
                    "for all devices. Tune first, with hardware.num_gpus or hardware.cores as one "
                    "seed has them, and launch what it writes; or leave parallel out."
                )
            resolved, notes = resolve(resolved, import_path)
            for line in notes:
                screen.note(line)
        if part := shares[0].hardware.get("gpu_share"):
            backend, text = shares[0].hardware["backend"], f"{100 * part:.3g} % of its memory each"
            turns = " (in turns)" if backend == "direct" else ""
            screen.note(f"launches share each GPU by backend {backend}{turns}, {text}")
        for share in shares:  # all faults before anything starts
            with importable(import_path):
                planned(load_config(share.of(resolved, first)), source)
        seeds = range(first, first + count)
        with shared_gpus(shares) as variables, every_signal_counts():
            arguments = {**options, "import_path": import_path}
            job = _Seeds(resolved, seeds, shares, variables, screen, arguments)
            job.run()
    comparison, page = _compared(resolved, job.runs)
    return SeedsResult([job.runs[seed] for seed in job.seeds], comparison, page)


@dataclass
class _Launch:
    """Holds a launch that is running."""

    seed: int
    share: DeviceShare
    process: subprocess.Popen[bytes]
    outcome: IO[bytes]
    started: float
    text: bytes = b""  # the end of its output, which is no whole line yet
    lines: list[str] = field(default_factory=list)


class _Seeds:
    """Starts launches as shares of the machine are free, shows what they say, and stops them."""

    def __init__(
        self,
        config: Config,
        seeds: range,
        shares: list[DeviceShare],
        variables: Mapping[str, str],
        screen: Screen,
        options: Mapping[str, Any],
    ) -> None:
        """`options`: arguments of each `launch`, beside its config and view."""
        self.seeds, self.runs = seeds, {seed: SeedRun(seed, "not started") for seed in seeds}
        self._config, self._options, self._variables = config, options, variables
        self._screen, self._free, self._waiting = screen, list(shares), list(seeds)
        self._running: dict[int, _Launch] = {}
        # One at a time has the terminal to itself; of several each line says whose it is.
        self._inherits = screen.is_live and len(shares) == 1
        self._selector = selectors.DefaultSelector()
        self._interrupts, self._deadline_s = 0, float("inf")

    def run(self) -> None:
        """Returns when every launch that was started has ended."""
        try:
            while self._running or self._waiting:
                try:
                    while self._free and self._waiting:
                        self._start(self._waiting.pop(0), self._free.pop(0))
                    self._look()
                except KeyboardInterrupt:
                    self._stop()
        finally:
            for launch in self._running.values():
                launch.process.kill()
                launch.process.wait()
            self._selector.close()

    def _start(self, seed: int, share: DeviceShare) -> None:
        self._screen.note(f"seed {seed}: {seed - self.seeds[0] + 1} of {len(self.seeds)}")
        reading, writing = os.pipe()
        view: ViewName = "live" if self._inherits else "plain"
        config = share.of(self._config, seed)
        options = {**self._options, "config": config, "view": view}
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", _CHILD, str(writing), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=None if self._inherits else subprocess.PIPE,
                stderr=None if self._inherits else subprocess.STDOUT,
                pass_fds=[writing],
                env={**os.environ, **self._variables, **share.environment, "PYTHONUNBUFFERED": "1"}
                | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                process_group=0,  # Ctrl-C in the terminal is for this process, which passes it on
            )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        launch = _Launch(seed, share, process, os.fdopen(reading, "rb"), time.time())
        self._running[seed] = launch
        if process.stdout is not None:
            self._selector.register(process.stdout, selectors.EVENT_READ, launch)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as file:  # it tells why it ended
            file.write(pickle.dumps(sys.path))
            file.write(cloudpickle.dumps(options))

    def _look(self) -> None:
        """Waits a moment; shows what launches have said, and takes in those that have ended."""
        if self._selector.get_map():
            for key, _ in self._selector.select(_POLL_S):
                if not self._read(key.data):
                    self._selector.unregister(key.fileobj)
        elif self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                next(iter(self._running.values())).process.wait(_POLL_S)
        for launch in list(self._running.values()):
            if launch.process.poll() is not None:
                self._end(launch)
        if time.monotonic() > self._deadline_s:
            for launch in self._running.values():
                launch.process.kill()

    def _read(self, launch: _Launch) -> bool:
        """Shows the lines that have come; False at the end of the output."""
        assert launch.process.stdout is not None
        chunk = os.read(launch.process.stdout.fileno(), 65536)
        *lines, launch.text = (launch.text + chunk).split(b"\n")
        if not chunk and launch.text:
            lines, launch.text = [launch.text], b""
        for line in lines:
            text = printable(line.decode(errors="replace"))
            launch.lines = [*launch.lines, text][-_LAST_LINES:]
            self._screen.note(f"seed {launch.seed}  {text}")
        return bool(chunk)

    def _end(self, launch: _Launch) -> None:
        output = launch.process.stdout
        if output is not None:
            if output in (key.fileobj for key in self._selector.get_map().values()):
                self._selector.unregister(output)
                os.set_blocking(output.fileno(), False)  # a process that it left may hold it open
                with contextlib.suppress(BlockingIOError):
                    while self._read(launch):
                        pass
            output.close()
        del self._running[launch.seed]
        self._free.append(launch.share)
        run = self.runs[launch.seed] = self._seed_run(launch)
        self._screen.note(_describe(run), "red" if run.state == "failed" else "")

    def _seed_run(self, launch: _Launch) -> SeedRun:
        code, outcome = launch.process.returncode, None
        with launch.outcome as file, contextlib.suppress(EOFError, pickle.UnpicklingError):
            outcome = pickle.load(file)
        folder = _folder_of(self._config, launch)
        state = "stopped" if self._interrupts else "failed"
        if not isinstance(outcome, SeedOutcome):
            end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            last = "\n".join(launch.lines)
            return SeedRun(launch.seed, state, folder, error=f"its launcher died by {end}\n{last}")
        if outcome.result is not None:
            result = outcome.result
            return SeedRun(launch.seed, result.state, result.folder, result)
        if outcome.exit_code == _BAD_INPUT:
            self._waiting.clear()
        return SeedRun(launch.seed, state, folder, error=outcome.error)

    def _stop(self) -> None:
        """Passes a Ctrl-C on; no further seed is started."""
        self._waiting.clear()
        self._interrupts += 1
        for launch in self._running.values():
            launch.process.terminate()  # a shell's background job ignores SIGINT, and so do these
        if self._interrupts == 1 and self._running and not self._inherits:
            self._screen.note("stopping all seeds; once more stops at once", "yellow")
        if self._interrupts > 1:
            self._deadline_s = min(self._deadline_s, time.monotonic() + _ENDING_S)


def _describe(run: SeedRun) -> str:
    """Says how a seed ended: in a line, or with all that its error says."""
    if run.result is None:
        where = f" ({printable(run.folder)})" if run.folder else ""
        return f"seed {run.seed} {run.state}{where}: {printable_lines(run.error)}"
    mean, trained = run.result.return_mean, run.result.eval_return
    parts = [] if mean is None else [f"return {mean:,.1f}"]
    parts += [] if trained is None else [f"trained policy {trained:,.1f}"]
    figures = ", ".join([*parts, f"{run.result.seconds:,.1f} s of training"])
    return f"seed {run.seed} {run.state}: {figures}; {printable(run.result.folder)}"


def _folder_of(config: Config, launch: _Launch) -> Path | None:
    """Finds the run that a launch has begun, by its process."""
    base = Path(config.run.folder) / config.run.name
    for path in sorted(base.glob("*/run.json"), reverse=True):
        with contextlib.suppress(RunFolderError):
            state = RunFolder(path.parent).state()
            started = state.get("started")
            is_later = isinstance(started, float) and started >= launch.started
            if is_later and state.get("pid") == launch.process.pid:
                return path.parent.resolve()
    return None


def _compared(config: Config, runs: Mapping[int, SeedRun]) -> tuple[Comparison | None, Path | None]:
    """Compares the runs that have metrics; without a page, a warning: the runs are done."""
    from gmi_drl.report.comparison.groups import Comparison
    from gmi_drl.report.comparison.page import comparison_page
    from gmi_drl.report.comparison.runs import ComparisonError

    folders = [run.folder for run in runs.values() if run.folder is not None]
    if not folders:
        return None, None
    try:
        comparison = Comparison.of(folders)
    except ComparisonError as error:
        warnings.warn(f"no comparison: {error}", stacklevel=3)
        return None, None
    base = Path(config.run.folder) / config.run.name
    page = base.resolve() / f"comparison_{time.strftime('%Y-%m-%d_%H-%M-%S')}.html"
    try:
        replace_file(page, comparison_page(comparison))
    except OSError as error:
        warnings.warn(f"{page}: no page of the comparison ({error.strerror})", stacklevel=3)
        return comparison, None
    return comparison, page


def resume_commands(result: SeedsResult) -> list[str]:
    """Returns what to type to go on with the seeds that did not finish."""
    return [
        f"to go on with seed {run.seed}: {command}"
        for run in result.runs
        if run.state in ("failed", "stopped") and run.folder
        if (command := resume_command(run.folder))
    ]


def summary(result: SeedsResult) -> str:
    """Says how many seeds ended how: 4 finished, 1 failed."""
    states = [run.state for run in result.runs]
    parts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{counted(len(states), 'seed')}: {parts}"
