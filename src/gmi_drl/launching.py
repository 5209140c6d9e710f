"""Puts the launcher and the selector together: `auto` is tuned first, promises are kept in view.

A launch that needs neither imports nothing of the selector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from .launcher.colocated_runs import records_folder
from .launcher.start import launcher

if TYPE_CHECKING:
    from gmi_drl.launcher.watch.watch import Promise, Watch

    from .launcher.start.result import RunResult
    from .launcher.view.view import ViewName
    from .placement import Config, Topology
    from .roles import DRL_role
    from .seeds.launch import SeedsResult


@overload
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
    seeds: None = None,
    parallel: int | None = None,
) -> RunResult: ...


@overload
def launch(
    config: Config | Path | str | Mapping[str, Any],
    *,
    overrides: Iterable[str] = (),
    roles: Mapping[str, type[DRL_role]] | None = None,
    view: ViewName = "auto",
    import_path: Path | None = None,
    callbacks: Iterable[object] = (),
    seeds: int,
    parallel: int | None = None,
) -> SeedsResult: ...


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
    seeds: int | None = None,
    parallel: int | None = None,
) -> RunResult | SeedsResult:
    """Trains what `config` says and returns when it is done.

    `overrides` are `section.key=value` strings; `roles` gives classes instead of the config's
    names. What the config says `auto` of is taken from tuning, which measures first where nothing
    is on record. A run's folder, or one of its checkpoints, as the config, with the override
    `mode=serving`: its policy is served, with its own environment, algorithm and devices.
    `resume`, in place of a config, is such a folder too; of its config only `run.*` and `comm.*`
    may be overridden. `keep_gcs`: whether the runtime's record of who ran what moves into the run's
    folder; by default it does when this call has started the runtime. `watch` follows the run, and
    ends it when it raises; `callbacks` are told of it, beside those that the config names
    (docs/callbacks.md). `import_path` is the folder where modules of roles and environments lie
    (default: the config's, or the present one). Raises ConfigError with every fault, GmiDied when a
    GMI is lost for good, and leaves no process behind. In the main thread SIGTERM and SIGHUP stop
    it as Ctrl-C does (KeyboardInterrupt); while the run trains, the first lets the iteration end.
    `seeds` trains so many, from run.seed on, each by a launcher process of its own, `parallel` of
    them at a time (docs/comparing.md), and returns a SeedsResult: one that fails raises nothing.
    """
    if seeds is not None:
        if config is None or resume is not None or watch is not None or keep_gcs is not None:
            raise ValueError(
                "launch(seeds=...) begins new runs in processes of their own: it takes a config, "
                "and neither resume, watch nor keep_gcs."
            )
        from .seeds.launch import launch_seeds

        return launch_seeds(
            config,
            seeds,
            parallel=parallel,
            overrides=overrides,
            import_path=import_path,
            view=view,
            options={"roles": roles, "callbacks": list(callbacks)},
            resolve=partial(_resolve, view),
        )
    if parallel is not None:
        raise ValueError("launch(parallel=...) is for seeds=..., which is not given.")
    return launcher.launch(
        config,
        overrides=overrides,
        roles=roles,
        resume=resume,
        view=view,
        keep_gcs=keep_gcs,
        watch=watch,
        import_path=import_path,
        callbacks=callbacks,
        resolve=partial(_resolve, view),
        promise_of=_promise_of,
        follow=_follow,
    )


def _follow(before: Config, devices: Topology, wanted: Config, others: Topology) -> list[str]:
    from .selector.tune.keep import followed

    return followed(before, devices, wanted, others)


def _resolve(view: ViewName, config: Config, import_path: Path) -> tuple[Config, list[str]]:
    from .selector.tune.tuning import resolve  # which launches what it measures

    return resolve(config, beside=import_path, view=view)


def _promise_of(config: Config, topology: Topology, import_path: Path | None) -> Promise | None:
    if next(records_folder().glob("*.jsonl"), None) is None:
        return None
    from .selector.record.record import promise_of

    return promise_of(config, topology, import_path)
