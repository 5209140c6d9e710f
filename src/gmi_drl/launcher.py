"""`launch`: from a config to a finished run. The driver plans, starts, watches, and stays out.

This process never imports torch: that happens once, in the fork server, while the config is read.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl import runtime
from gmi_drl.comm import create_group
from gmi_drl.gmi import Gang
from gmi_drl.placement import Config, Layout, load_config
from gmi_drl.roles.host import GmiHost, Job

from .curve import draw_curve
from .paper_config import config as paper_config
from .planning import planned
from .preload import PRELOAD
from .run_folder import RunFolder
from .view import View, ViewName, open_view

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

_HOLISTIC = "gmi_drl.roles:Holistic"
_POLL = timedelta(milliseconds=100)


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `gmis` holds what each GMI's role returned, by gmi_id."""

    folder: Path
    state: str  # "finished", or "stopped" when it was asked to end
    iteration: int
    steps: int
    seconds: float  # training time, all sessions of the run together
    steps_per_s: float
    return_mean: float | None  # of the last 100 training episodes
    eval_return: float | None  # mean return of the greedy policy's whole episodes
    curve: Path | None
    gmis: list[Any]


def launch(
    config: Config | Path | str | Mapping[str, Any],
    *,
    overrides: Iterable[str] = (),
    roles: Mapping[str, type[DRL_role]] | None = None,
    resume: Path | str | None = None,
    view: ViewName = "auto",
) -> RunResult:
    """Train what `config` says and return when it is done.

    `overrides` are `section.key=value` strings; `roles` gives classes instead of the config's
    names; `resume` is a run's folder, or one of its checkpoints. Raises ConfigError with every
    fault, GmiDied when a GMI is lost, and leaves no process behind.
    """
    started = runtime.is_initialized()
    if not started:
        runtime.init(PRELOAD)
    try:
        job = _prepare(config, paper_config.apply_to(overrides), roles, resume)
        return _run(job, view)
    finally:
        if not started:
            runtime.shutdown()


def _prepare(
    config: Config | Path | str | Mapping[str, Any],
    overrides: list[str],
    roles: Mapping[str, type[DRL_role]] | None,
    resume: Path | str | None,
) -> Job:
    """Everything decided before a process is started: config, layout, folder, role."""
    if resume is not None:
        folder = RunFolder.existing(Path(resume))
        resolved = load_config(folder.path / "config.yaml", overrides)
        layout = Layout.from_json((folder.path / "layout.json").read_text(encoding="utf-8"))
        role = _role(resolved, roles)
        beside = Path(folder.state()["config_folder"])
    else:
        given = config.model_dump(mode="json") if isinstance(config, Config) else config
        resolved = load_config(given, overrides)
        source = str(config) if isinstance(config, (str, Path)) else None
        layout = planned(resolved, source)
        role = _role(resolved, roles)
        beside = (Path(source).parent if source else Path.cwd()).resolve()
        folder = RunFolder.create(resolved, layout)
        folder.update(config_folder=str(beside))
    return Job(
        layout,
        resolved,
        create_group([f"gmi {gmi.gmi_id}, GPU {gmi.gpu_id}" for gmi in layout.gmis]),
        runtime.run_directory(),
        folder.path,
        None if resume is None else Path(resume).resolve(),
        role,
        beside,
    )


def _role(config: Config, roles: Mapping[str, type[DRL_role]] | None) -> type[DRL_role] | str:
    """What runs a GMI: under TCG_EX the trainer's class, since all roles share the GMI."""
    if roles is not None:
        unknown = sorted(set(roles) - {"trainer"})
        if unknown:
            raise ValueError(
                f"roles={unknown}: template {config.layout.template} runs one class a GMI, named "
                "by its trainer. Pass roles={'trainer': YourRole}."
            )
        if "trainer" in roles:
            return roles["trainer"]
    named = config.roles.get("trainer")
    return _HOLISTIC if named is None else named.class_


def _run(job: Job, view: ViewName) -> RunResult:
    """Start the gang, show what it reports, and write down how it ended."""
    assert job.folder is not None
    folder = RunFolder(job.folder)
    folder.begin()
    last: dict[str, Any] = {}
    try:
        with Gang(
            job.layout, GmiHost, lambda spec: (spec.gmi_id, job), logs=folder.path / "logs"
        ) as gang:
            with open_view(view, job.config, job.layout) as screen:
                stopped = _watch(gang, screen, last)
            gmis = list(gang.results().values())
    except BaseException as error:
        with suppress(OSError):  # a full disk must not hide what went wrong
            folder.update(state="failed", finished=time.time(), error=str(error), **_summary(last))
        raise
    main = gmis[0] if isinstance(gmis[0], dict) else {}
    state = "stopped" if stopped else "finished"
    curve = draw_curve(folder.path, f"{job.config.run.name}: {job.config.env.id}")
    folder.update(
        state=state, finished=time.time(), eval_return=main.get("eval_return"), **_summary(last)
    )
    return RunResult(
        folder.path,
        state,
        int(main.get("iteration", 0)),
        int(main.get("steps", 0)),
        float(last.get("time_s", 0.0)),
        float(last["steps"] / last["time_s"]) if last else 0.0,
        last.get("return_mean"),
        main.get("eval_return"),
        curve,
        gmis,
    )


def _watch(gang: Gang, screen: View, last: dict[str, Any]) -> bool:
    """Show records until every GMI is done; True if it was asked to stop before that.

    The first Ctrl-C (or SIGTERM) lets the iteration in flight end and a checkpoint be written;
    the second ends everything at once.
    """
    asked = False
    gang.start("run")
    with _terminate_as_interrupt():
        while True:
            try:
                done = gang.wait(_POLL)
                _show(gang, screen, last)
                if done:
                    return asked
            except KeyboardInterrupt:
                if asked:
                    raise
                asked = True
                gang.request_stop()


def _show(gang: Gang, screen: View, last: dict[str, Any]) -> None:
    for _, record in gang.records():
        if isinstance(record, dict) and "kind" in record:
            if record["kind"] == "iteration":
                last.clear()
                last.update(record)
            screen.show(record)


def _summary(last: dict[str, Any]) -> dict[str, Any]:
    keys = ("iteration", "steps", "steps_per_s", "return_mean", "time_s")
    return {key: last[key] for key in keys if key in last}


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM is Ctrl-C while a run is watched (only in the main thread can that be arranged)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
