"""Launches a config: plans, starts its GMIs, watches them, and stays out of the inner loop.

This process never imports torch: that happens once, in the fork server, while the config is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl import runtime
from gmi_drl.gmi import lease
from gmi_drl.launcher.callbacks.calls import Callbacks
from gmi_drl.launcher.callbacks.loading import check_objects
from gmi_drl.launcher.folder.run_folder import RunFolder, keep_gcs_in
from gmi_drl.launcher.hosts.stores import merged_stores
from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gmi_drl.launcher.paper_config import config as paper_config
from gmi_drl.launcher.view.view import ViewName
from gmi_drl.launcher.watch.watch import PromiseOf, Watch, is_comparable
from gmi_drl.placement import Config

from .jobs import Follow, Resolve, new_job, resumed_job
from .preload import preload_of
from .resizer import Resizer
from .result import RunResult
from .training_run import TrainingRun

if TYPE_CHECKING:
    from gmi_drl.launcher.hosts.cluster import Cluster
    from gmi_drl.roles import DRL_role


def launch(
    config: Config | Path | str | Mapping[str, Any] | None = None,
    *,
    overrides: Iterable[str] = (),
    roles: Mapping[str, type[DRL_role]] | None = None,
    resume: Path | str | None = None,
    view: ViewName = "auto",
    keep_gcs: bool | None = None,
    watch: Watch | None = None,
    import_path: Path | None = None,
    callbacks: Iterable[object] = (),
    resolve: Resolve | None = None,
    promise_of: PromiseOf | None = None,
    follow: Follow | None = None,
) -> RunResult:
    """Trains what `config` says and returns when it is done, as `gmi_drl.launch` has it.

    `resolve` says what `auto` in the config is; without it that is a fault. `promise_of` looks up
    the speed that a new run is held against. `follow` keeps what an update is where a device is
    lost; without it that is the run's end.
    """
    overrides, objects = list(overrides), check_objects(callbacks)
    with terminate_as_interrupt(), ExitStack() as locks:
        is_ours = not runtime.is_initialized()
        try:
            if is_ours:
                runtime.init(preload_of(config, overrides, resume))
            if (config is None) == (resume is None):
                raise ValueError("launch takes a config or resume=FOLDER, one of them.")
            swept = lease.sweep()  # before devices are looked at: it may take MIG instances away
            if config is None:
                checkpoint = Path(str(resume))
                job, notes, cluster = resumed_job(checkpoint, overrides, roles, import_path, locks)
            else:
                overrides = paper_config.apply_to(overrides)
                job, notes, cluster = new_job(
                    config, overrides, roles, import_path, locks, resolve=resolve
                )
            keep = is_ours if keep_gcs is None else keep_gcs
            # A resumed run may have begun on another machine, whose speed says nothing of this one.
            if job.resume is not None or cluster or not is_comparable(job.config):
                promise_of = None
            # `sweep` has warned of leases that it could not undo.
            kinds = (result.lease.kind for result in swept if result.undone)
            left = [f"undone: what a killed launcher had left of backend {k}" for k in kinds]
            assert job.folder is not None
            with _control_store(job.folder, keep, cluster) as store:
                folder = RunFolder(job.folder)
                run = TrainingRun(
                    folder=folder, view=view, store=store, watch=watch, promise_of=promise_of,
                    resizer=Resizer(folder, job, roles, follow), cluster=cluster,
                    callbacks=Callbacks([], folder.path, job.config), notes=left + notes,
                )  # fmt: skip
                return run.run(objects)
        finally:
            if is_ours:
                runtime.shutdown()


@contextmanager
def _control_store(folder: Path, keep_gcs: bool, cluster: Cluster | None) -> Iterator[Path | None]:
    """Yields the control store if it is the run's own; at the end its file is complete.

    The stores of hosts are merged into it.
    """
    if not keep_gcs:  # it is that of a longer-lived runtime, and stays where it is
        yield None
        return
    is_kept = keep_gcs_in(store := folder / "gcs.sqlite")
    try:
        with merged_stores(folder) if is_kept and cluster is not None else nullcontext():
            yield store
    finally:
        with suppress(runtime.GcsError, TimeoutError):  # it is tried again as the runtime ends
            runtime.flush_gcs()
