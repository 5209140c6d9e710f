"""What is decided before a process of a run is started: config, layout, folder, roles, group."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl import runtime
from gmi_drl.comm import GroupSpec, create_group
from gmi_drl.launcher.folder.run_folder import RunFolder, lock_of
from gmi_drl.launcher.plan.import_path import importable
from gmi_drl.launcher.plan.planning import planned
from gmi_drl.launcher.plan.reduction import reduction_of
from gmi_drl.launcher.plan.served_run import config_of_run
from gmi_drl.launcher.view.screen import ViewName
from gmi_drl.launcher.view.startup_notes import PLAN_FILE
from gmi_drl.launcher.wire.wiring import Classes, classes_of, names_of, tally_of, wires_of
from gmi_drl.placement import (
    ABSENT,
    Config,
    ConfigError,
    Fault,
    Layout,
    layout_faults_of,
    load_config,
)
from gmi_drl.roles.role.host import Job

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role


def new_job(
    config: Config | Path | str | Mapping[str, Any],
    overrides: list[str],
    roles: Mapping[str, type[DRL_role]] | None,
    beside: Path | None,
    view: ViewName,
    held: ExitStack,
) -> tuple[Job, list[str]]:
    """The job of a new run, and what to say of where `auto` in the config came to.

    Tunes first where nothing is on record. `held` keeps the lock of the run's folder.
    """
    given = config.model_dump(mode="json") if isinstance(config, Config) else config
    source = str(config) if isinstance(config, (str, Path)) else None
    if source is not None and Path(source).is_dir():
        given, its_folder = config_of_run(Path(source), overrides)
        beside = beside or its_folder
    resolved = load_config(given, overrides)
    notes: list[str] = []
    beside = (beside or (Path(source).parent if source else Path.cwd())).resolve()
    if not resolved.is_settled:
        from gmi_drl.selector.tune.tuning import settle  # which launches what it measures

        if roles:
            remedy = "Name them in the config, or give a number."
            rule = "auto is tuned with the roles that the config names, and launch was given others"
            raise ConfigError([Fault("roles", sorted(roles), rule, remedy)], source)
        resolved, notes = settle(resolved, beside=beside, view=view)
    with importable(beside):  # the environment's module may be there
        layout = planned(resolved, source)
    classes = classes_of(resolved, layout, roles)
    folder = RunFolder.create(resolved, layout, beside)
    held.enter_context(folder.held())
    return _job(layout, resolved, folder, None, classes, beside), notes


def resumed_job(
    checkpoint: Path,
    overrides: list[str],
    roles: Mapping[str, type[DRL_role]] | None,
    held: ExitStack,
) -> Job:
    """The job of a run that goes on: with its own config and layout, longer perhaps."""
    folder = RunFolder.existing(checkpoint)
    held.enter_context(folder.held())
    path = folder.path / "config.yaml"
    resolved = load_config(path, overrides)
    settings, wanted = (its.model_dump(mode="json") for its in (load_config(path), resolved))
    faults = [
        Fault(
            key,
            value,
            "cannot change in a run that is resumed; only run.* and comm.* can",
            "Begin a new run for other settings.",
        )
        for section in Config.model_fields
        if section not in ("run", "comm")
        for key, value in _changed(section, settings[section], wanted[section])
    ]
    if resolved.mode == "serving":
        faults.append(
            Fault(
                "mode", "serving", "has nothing to go on with",
                f"Serve the policy of this run by: gmi-drl launch {checkpoint} --set mode=serving",
            )
        )  # fmt: skip
    if faults:
        raise ConfigError(faults, f"--resume {checkpoint}")
    layout = folder.layout()
    if damage := layout_faults_of(resolved, layout):
        raise ConfigError(damage, f"{folder.path / 'layout.json'}")
    beside = Path(str(folder.state().get("config_folder", Path.cwd())))
    folder.write_config(resolved)
    classes = classes_of(resolved, layout, roles)
    return _job(layout, resolved, folder, checkpoint.resolve(), classes, beside)


def _changed(key: str, before: Any, wanted: Any) -> Iterator[tuple[str, Any]]:
    """The dotted keys below `key` that differ, with the value that is wanted."""
    if isinstance(before, dict) and isinstance(wanted, dict):
        for name in {**before, **wanted}:
            yield from _changed(f"{key}.{name}", before.get(name, ABSENT), wanted.get(name, ABSENT))
    elif before != wanted:
        yield key, wanted


def _job(
    layout: Layout,
    config: Config,
    folder: RunFolder,
    resume: Path | None,
    classes: Classes,
    beside: Path,
) -> Job:
    names, sockets = names_of(layout), runtime.run_directory()
    return Job(
        layout,
        config,
        _group(layout, config, folder, names, sockets),
        sockets,
        folder.path,
        resume,
        classes,
        beside,
        uuid.uuid4().hex,
        tally_of(layout),
        wires_of(layout, sockets),
        lock=lock_of(folder.path),
    )


def _group(
    layout: Layout, config: Config, folder: RunFolder, names: Sequence[str], sockets: Path
) -> GroupSpec | None:
    """The reducer group of the trainers, by the plan that is kept in the run's folder."""
    trainers = layout.holding("trainer")
    if not trainers:
        return None
    plan = reduction_of(config, layout)
    folder.write_atomic(PLAN_FILE, json.dumps(plan.as_json(), indent=1))
    return create_group(
        [names[gmi.gmi_id] for gmi in trainers],
        [gmi.gpu_id for gmi in trainers],
        strategy=plan.strategy,
        wire=config.comm.wire,
        directory=sockets,
    )
