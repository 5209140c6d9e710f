"""Puts the launcher and the selector together: `auto` is tuned first, promises are kept in view.

A launch that needs neither imports nothing of the selector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .launcher.colocated_runs import records_folder
from .launcher.start import launcher

if TYPE_CHECKING:
    from gmi_drl.launcher.watch.watch import Promise, Watch

    from .launcher.start.launcher import RunResult
    from .launcher.view.view import ViewName
    from .placement import Config, Topology
    from .roles import DRL_role


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
) -> RunResult:
    """Trains what `config` says and returns when it is done.

    `overrides` are `section.key=value` strings; `roles` gives classes instead of the config's
    names. What the config says `auto` of is taken from tuning, which measures first where nothing
    is on record. A run's folder, or one of its checkpoints, as the config, with the override
    `mode=serving`: its policy is served, with its own environment, algorithm and devices.
    `resume`, in place of a config, is such a folder too; of its config only `run.*` and `comm.*`
    may be overridden. `keep_gcs`: whether the runtime's record of who ran what moves into the run's
    folder; by default it does when this call has started the runtime. `watch` follows the run, and
    ends it when it raises. `import_path` is the folder where modules of roles and environments lie
    (default: the config's, or the present one). Raises ConfigError with every fault, GmiDied when a
    GMI is lost for good, and leaves no process behind. In the main thread SIGTERM and SIGHUP stop
    it as Ctrl-C does (KeyboardInterrupt); while the run trains, the first lets the iteration end.
    """
    return launcher.launch(
        config,
        overrides=overrides,
        roles=roles,
        resume=resume,
        view=view,
        keep_gcs=keep_gcs,
        watch=watch,
        import_path=import_path,
        resolve=partial(_resolve, view),
        promise_of=_promise_of,
    )


def _resolve(view: ViewName, config: Config, import_path: Path) -> tuple[Config, list[str]]:
    from .selector.tune.tuning import resolve  # which launches what it measures

    return resolve(config, beside=import_path, view=view)


def _promise_of(config: Config, topology: Topology, import_path: Path | None) -> Promise | None:
    if next(records_folder().glob("*.jsonl"), None) is None:
        return None
    from .selector.record.record import promise_of

    return promise_of(config, topology, import_path)
