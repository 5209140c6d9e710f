"""Runs a candidate to measure it: no evaluation, no checkpoints, nobody replaced.

The run is killed when it has shown enough: it saves nothing, and its folder goes at once.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from gmi_drl import runtime
from gmi_drl.gmi import Gang
from gmi_drl.gmi.usage import processes
from gmi_drl.gmi.usage.meter import Meter
from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.launcher.start.launcher import RunResult, launch
from gmi_drl.launcher.watch.watch import Watch
from gmi_drl.placement import Config, Topology
from gmi_drl.selector.tune.candidate import Candidate, Failed
from gmi_drl.selector.tune.space import config_of, layout_text

from .failures import classify

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role


class StopRun(Exception):
    """A watch raises it: the run has shown enough, or will not."""


class GangWatch(Watch, Protocol):
    """A `Watch` that keeps its gang."""

    gang: Gang | None


W = TypeVar("W", bound=GangWatch)


def run_watched(
    config_in: Callable[[Path], Config],
    watch_of: Callable[[Meter], W],
    beside: Path | None,
    roles: Mapping[str, type[DRL_role]] | None = None,
) -> tuple[W, RunResult | Failed | None]:
    """Launches `config_in(folder)`, in a new folder, until its watch says that it is over.

    The watch, and how the run ended: None when that was by `StopRun`. Failed is what a candidate
    did; what is wrong with the runtime or the disk raises, and so does KeyboardInterrupt.
    Afterwards no process, file or memory of the run is left. Needs the runtime.
    """
    kills = processes.oom_kills()
    with (
        tempfile.TemporaryDirectory(
            prefix="measured-", dir=runtime.run_directory(), ignore_cleanup_errors=True
        ) as folder,
        Meter() as meter,
    ):
        failed: Failed | None = None
        watch = watch_of(meter)
        try:
            result = launch(
                config_in(Path(folder)), roles=roles, view="none", keep_gcs=False, watch=watch,
                import_path=beside,
            )  # fmt: skip
        except StopRun:
            return watch, None
        except Exception as error:
            layout = None if watch.gang is None else watch.gang.layout
            failed = classify(error, layout, oom_kills=processes.oom_kills() - kills)
            if failed is None:
                raise
        finally:
            _let_go(watch)
    if failed is not None:
        gc.collect()  # the error and its gang hold each other, and memory of the candidate
        return watch, failed
    if result.state == "stopped":
        raise KeyboardInterrupt
    return watch, result


def _let_go(watch: GangWatch) -> None:
    """Drops its gang, and what that said at last: with it goes what the runtime keeps of it."""
    while watch.gang is not None:
        try:
            watch.gang.records()
            watch.gang = None
        except runtime.SerializationError:  # of one record: the others are still there
            continue


def candidate_config(
    config: Config,
    candidate: Candidate,
    folder: Path,
    topology: Topology | None = None,
    total_steps: int | None = None,
) -> Config:
    """`config` with what a candidate has, run in `folder`, which is the caller's to delete.

    Where shares differ the layout file is written there too, for `topology` (None: the devices that
    the config finds). `total_steps`: other than those of `config`.
    """
    layout_file = None
    if candidate.row.percents is not None:
        layout_file = folder / "layout.yaml"
        text = layout_text(config, candidate, topology or find_devices(config))
        layout_file.write_text(text, encoding="utf-8")
    resolved = config_of(config, candidate, layout_file)
    changes = {
        "folder": str(folder),
        "total_steps": total_steps or config.run.total_steps,
        "eval_episodes": 0,
        "checkpoint_every": 0,
        "target_return": None,
        "max_restarts": 0,
        "profile": False,
    }
    return resolved.model_copy(update={"run": resolved.run.model_copy(update=changes)})
