"""Decides what a run is before a process of it starts: config, layout, folder, roles, group."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gmi_drl import runtime
from gmi_drl.comm import create_group
from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.launcher.callbacks.loading import logger_faults
from gmi_drl.launcher.folder.run_folder import (
    RunFolder,
    RunFolderError,
    lock_of,
    outcome_of,
)
from gmi_drl.launcher.plan.planning import (
    ask_actor,
    backend_reason,
    find_devices,
    planned,
    reduction_of,
)
from gmi_drl.launcher.plan.user_code import names_user_code, try_here
from gmi_drl.launcher.plan.wiring import names_of, wires_of
from gmi_drl.launcher.watch.noise_watch import why_none
from gmi_drl.launcher.watch.records import PROFILED
from gmi_drl.placement import (
    ABSENT,
    Config,
    ConfigError,
    Fault,
    Layout,
    Topology,
    counted,
    layout_faults_of,
    load_config,
)
from gmi_drl.placement.config.load import with_places
from gmi_drl.roles.loading import Classes, classes_of, importable
from gmi_drl.roles.role.host import COUNTERS
from gmi_drl.roles.role.job import Job, Wires

if TYPE_CHECKING:
    from gmi_drl.comm.plan.plan import ReductionPlan
    from gmi_drl.launcher.hosts.cluster import Cluster, Host
    from gmi_drl.roles import DRL_role

# Keys of `algorithm` that say which steps a replay keeps and draws, and not what is learned.
_REPLAY_KEYS: Final = (
    "replay_capacity", "replay_save", "replay_device", "sampler", "priority_alpha",
    "priority_beta", "priority_eps", "priority_weights",
)  # fmt: skip

# Keys of `run` that only the beginning of a run follows.
_OF_A_NEW_RUN: Final = ("run.name", "run.seed", "run.folder", "run.policy")

# Keys that may change while a run trains: how many GMIs with how many environments, on which
# devices, and what an update follows them by.
RESIZABLE: Final = (
    "layout.gmi_per_gpu", "layout.trainer_gpus", "env.num_env", "hardware.num_gpus",
    "hardware.cores", "hardware.sm_overcommit", "experience.batch_segments",
    "algorithm.horizon", "algorithm.minibatches",
    "algorithm.learning_rate", "algorithm.batch_size", "algorithm.replay_capacity",
    "algorithm.replay_start", "algorithm.updates_per_row",
)  # fmt: skip
# Returns what of `algorithm` follows a change, as overrides that keep the samples of an update.
Follow: TypeAlias = Callable[[Config, Topology, Config, Topology], list[str]]

# A config without `auto`, and lines that say where it came from. The folder is that of modules.
Resolve: TypeAlias = Callable[[Config, Path], tuple[Config, list[str]]]


def new_job(
    config: Config | Path | str | Mapping[str, Any],
    overrides: list[str],
    roles: Mapping[str, type[DRL_role]] | None,
    import_path: Path | None,
    locks: ExitStack,
    *,
    resolve: Resolve | None,
) -> tuple[Job, list[str], Cluster | None]:
    """Returns the job of a new run, notes on it and on `auto`, and its cluster, if any.

    `resolve` may measure first. `locks` keeps the lock of the run's folder, and the hosts.
    """
    source = str(config) if isinstance(config, (str, Path)) else None
    if source is not None and Path(source).is_dir():
        config, config_folder = _serving_config(Path(source), overrides)
        import_path = import_path or config_folder
    resolved = load_config(config, overrides)
    notes: list[str] = []
    import_path = (import_path or (Path(source).parent if source else Path.cwd())).resolve()
    if not resolved.is_resolved and resolve is not None and resolved.cluster is None:
        if roles:
            remedy = "Name them in the config, or give a number."
            rule = "auto is tuned with the roles that the config names, and launch was given others"
            raise ConfigError([Fault("roles", sorted(roles), rule, remedy)], source)
        resolved, notes = resolve(resolved, import_path)
    cluster = _cluster_of(resolved, locks)
    hosts = [] if cluster is None else cluster.hosts
    with importable(import_path):  # the environment's module may be there
        layout = planned(resolved, source, hosts=[host.resources for host in hosts])
    if faults := _user_code_faults(resolved, layout, import_path, roles):
        raise ConfigError(with_places(faults, source, overrides), source)
    classes = classes_of(resolved, layout, roles)
    folder = RunFolder.create(resolved, layout, import_path)
    locks.enter_context(folder.held())
    try:  # it may measure links
        job, job_notes = job_of(layout, resolved, folder, classes, import_path)
    except BaseException as error:
        with suppress(OSError, RunFolderError):  # a full disk must not hide what went wrong
            folder.update(**outcome_of(error))
        raise
    return job, [*notes, *job_notes], cluster


def _cluster_of(config: Config, locks: ExitStack) -> Cluster | None:
    """Returns the cluster that a config names, with its hosts, until `locks` is closed."""
    if config.cluster is None:
        return None
    from gmi_drl.launcher.hosts.cluster import joined

    return locks.enter_context(joined(config))


def _user_code_faults(
    config: Config, layout: Layout, folder: Path, roles: Mapping[str, Any] | None
) -> list[str]:
    """Lists what is wrong with the user's code that the config names, which is tried in a process.

    Where the code ends or blocks that process nothing is listed: a GMI fails alike, with its log.
    """
    if not names_user_code(config):
        return []
    settings, role_classes = config.model_dump(mode="json"), list((roles or {}).values())
    report: dict[str, list[str]] = {}
    with suppress(runtime.ActorRuntimeError):
        report = ask_actor("user code", try_here, settings, str(folder), layout, role_classes)
    return report.get("faults", [])


def _serving_config(run: Path, overrides: list[str]) -> tuple[dict[str, Any], Path]:
    """Returns the config that serves the policy of a run, or of one of its checkpoints.

    It has the run's environment, algorithm and devices. Also returns the folder of its modules.
    """
    folder = RunFolder.existing(run)
    trained = load_config(folder.path / "config.yaml").model_dump(mode="json")
    settings = {key: trained["run"][key] for key in ("name", "folder", "seed", "policy")}
    if trained["mode"] != "serving":  # one that served has no policy of its own
        settings["policy"] = str(run.resolve())
    config = {
        **{key: trained[key] for key in ("version", "mode", "env", "algorithm", "hardware")},
        "run": settings,
    }
    if load_config(config, overrides).mode != "serving":
        remedy = f"Serve its policy with --set mode=serving, or go on with it: --resume {run}."
        raise ConfigError([Fault("config", str(run), "is a run's folder, and no config", remedy)])
    return config, folder.import_path()


def resumed_job(
    checkpoint: Path,
    overrides: list[str],
    roles: Mapping[str, type[DRL_role]] | None,
    import_path: Path | None,
    locks: ExitStack,
) -> tuple[Job, list[str], Cluster | None]:
    """Returns the job of a run that goes on, perhaps for longer, notes on it, and its cluster."""
    folder = RunFolder.existing(checkpoint)
    locks.enter_context(folder.held())
    folder.finish_change()
    path = folder.path / "config.yaml"
    before, resolved = load_config(path), load_config(path, overrides)
    changed = list(changes(before, resolved))
    rule = (
        "cannot change in a run that is resumed; only run.*, comm.* and cluster.* can, and how "
        f"a replay is kept and drawn from ({', '.join(_REPLAY_KEYS)})"
    )
    faults = [
        Fault(key, value, rule, "Begin a new run for other settings, or gmi-drl resize it.")
        for key, value in changed
        if not key.startswith(("run.", "comm.", "cluster."))
        and key.removeprefix("algorithm.") not in _REPLAY_KEYS
    ]
    rule = "is what the run began with: a run that is resumed keeps its folder, weights and draws"
    faults += [
        Fault(key, value, rule, "Leave it as it is, or begin a new run.")
        for key, value in changed
        if key in _OF_A_NEW_RUN
    ]
    faults += logger_faults(resolved)
    if resolved.mode == "serving":
        command = f"gmi-drl launch {checkpoint} --set mode=serving"
        remedy = f"Serve the policy of this run by: {command}"
        faults.append(Fault("mode", "serving", "has nothing to go on with", remedy))
    if faults:
        raise ConfigError(faults, f"--resume {checkpoint}")
    layout = folder.layout()
    if layout_faults := layout_faults_of(resolved, layout):
        raise ConfigError(layout_faults, f"{folder.path / 'layout.json'}")
    import_path = folder.import_path() if import_path is None else import_path.resolve()
    if code_faults := _user_code_faults(resolved, layout, import_path, roles):
        raise ConfigError(code_faults, f"--resume {checkpoint}")
    if resolved.hosts != layout.hosts:
        rule = f"the run has begun on {counted(layout.hosts, 'host')}"
        fault = Fault("cluster.hosts", resolved.hosts, rule, "Give as many, or begin a new run.")
        raise ConfigError([fault], f"--resume {checkpoint}")
    cluster = _cluster_of(resolved, locks)
    hosts = [] if cluster is None else cluster.hosts
    new_layout = _on_hosts(layout, resolved, hosts, import_path, f"--resume {checkpoint}")
    if new_layout != layout and resolved.layout.file is None:
        folder.become(resolved, new_layout)
    else:
        folder.write_config(resolved)
    folder.update(config_folder=str(import_path))
    layout = new_layout
    classes = classes_of(resolved, layout, roles)
    resume = checkpoint.resolve()
    return (*job_of(layout, resolved, folder, classes, import_path, resume), cluster)


def _on_hosts(
    layout: Layout, config: Config, hosts: Sequence[Host], import_path: Path, source: str
) -> Layout:
    """Returns the layout of a run on the devices that its hosts have now.

    They may be others, as those of another cluster are. ConfigError where the GMIs would be, too.
    """
    before = [layout.of_host(rank).topology.devices for rank in range(len(hosts))]
    after = [host.topology.devices for host in hosts]
    if all(
        [(d.uuid, d.cores) for d in old] == [(d.uuid, d.cores) for d in new]
        for old, new in zip(before, after, strict=True)
    ):
        return layout
    with importable(import_path):
        new_layout = planned(config, source, hosts=[host.resources for host in hosts])
    if _gmis_of(new_layout) == _gmis_of(layout):
        return new_layout
    old, new = (" and ".join(str(len(host)) for host in devices) for devices in (before, after))
    rule = f"they have {new} devices, for other GMIs than those of the {old} it has begun on"
    remedy = "Give it hosts with as many devices each, or begin a new run."
    raise ConfigError([Fault("cluster.hosts", len(hosts), rule, remedy)], source)


def _gmis_of(layout: Layout) -> list[tuple[Any, ...]]:
    """Returns the properties of GMIs that a checkpoint of a layout depends on."""
    return [
        (layout.template, layout.host_of(gmi.gmi_id), gmi.gpu_id, gmi.roles, gmi.num_env)
        for gmi in layout.gmis
    ]


def resized_job(
    job: Job,
    overrides: Sequence[str],
    roles: Mapping[str, type[DRL_role]] | None,
    lost: Collection[str] = (),
) -> tuple[Job, list[str]]:
    """Returns the job that goes on with a run in another layout; its folder is as it was.

    `lost` has the UUIDs of GPUs that are lost. ConfigError with each reason against the change.
    """
    resolved = load_config(job.config, overrides)
    if faults := resize_faults(job.config, resolved):
        raise ConfigError(faults, "resize")
    with importable(job.role_folder):
        layout = planned(resolved, "resize", hosts=[(find_devices(resolved, lost), None)])
    same = {"hardware": job.config.hardware}  # other settings may name the same devices
    if layout == job.layout and resolved.model_copy(update=same) == job.config:
        raise ConfigError([_no_change_fault(resolved)], "resize")
    return _next_job(job, layout, resolved, classes_of(resolved, layout, roles))


def shrunk_job(
    job: Job,
    gone: Collection[int],
    roles: Mapping[str, type[DRL_role]] | None,
    follow: Follow,
    lost: Collection[str],
) -> tuple[Job, list[str]]:
    """Returns the job that goes on with a run without the devices of these indices.

    An update keeps its samples, as `follow` has it. `lost` has the UUIDs of all GPUs that the run
    has lost. ConfigError or DiscoveryError where it cannot be.
    """
    topology = job.layout.topology
    left = [device for device in topology.devices if device.index not in gone]
    words = [f"hardware.num_gpus={len(left)}"]
    if all(device.kind == "cpu" for device in left):
        words.append(f"hardware.cores={sorted(core for device in left for core in device.cores)}")
    wanted = load_config(job.config, words)
    words += follow(job.config, topology, wanted, find_devices(wanted, lost))
    return resized_job(job, words, roles, lost)


def rehosted_job(
    job: Job, hosts: Sequence[Host], roles: Mapping[str, type[DRL_role]] | None
) -> tuple[Job, list[str]]:
    """Returns the job that goes on with a run on these hosts, fewer or others than it had.

    ConfigError where it cannot be.
    """
    resolved = load_config(job.config, [f"cluster.hosts={len(hosts)}"])
    with importable(job.role_folder):
        layout = planned(resolved, "hosts", hosts=[host.resources for host in hosts])
    return _next_job(job, layout, resolved, classes_of(resolved, layout, roles))


def renewed_job(job: Job) -> tuple[Job, list[str]]:
    """Returns a new job for a run as it was, as links and counters belong to one gang."""
    return _next_job(job, job.layout, job.config, job.classes)


def _next_job(job: Job, layout: Layout, config: Config, classes: Classes) -> tuple[Job, list[str]]:
    assert job.folder is not None
    folder = RunFolder(job.folder)
    return job_of(layout, config, folder, classes, job.role_folder, resume=folder.path)


def resize_faults(before: Config, wanted: Config) -> list[Fault]:
    """Lists the changes that cannot be made while a run trains."""
    if fault := fixed_fault(before):
        return [fault]
    changed = list(changes(before, wanted))
    rule = f"cannot change while a run trains; {', '.join(RESIZABLE)} can"
    faults = [
        Fault(key, value, rule, "Leave it as it is, or begin a new run.")
        for key, value in changed
        if key not in RESIZABLE
    ]
    return faults if changed else [_no_change_fault(wanted)]


def fixed_fault(config: Config) -> Fault | None:
    """Tells why the layout of a run cannot become another one while it trains."""
    if config.mode == "serving":
        remedy = "End it, and serve anew with other numbers."
        return Fault("mode", "serving", "has no training to be resized", remedy)
    if config.cluster is not None:
        rule, remedy = "are what the run has begun on", "Begin a new run for another layout."
        return Fault("cluster.hosts", config.cluster.hosts, rule, remedy)
    if config.layout.file is not None:
        remedy = "Go on with it, or begin a run from a template."
        return Fault("layout.file", config.layout.file, "says what GMIs there are", remedy)
    if (name := config.algorithm.resolved_optimizer) == "parameter_server":
        rule = "cuts parameters and moments into as many pieces as there are GMIs that hold them"
        return Fault("algorithm.optimizer", name, rule, "Begin a new run for another layout.")
    return None


def _no_change_fault(config: Config) -> Fault:
    rule, remedy = "is what the run has", "Give other numbers, or leave it be."
    return Fault("layout.gmi_per_gpu", config.layout.gmi_per_gpu, rule, remedy)


def changes(before: Config, wanted: Config) -> Iterator[tuple[str, Any]]:
    """Yields the dotted keys in which two configs differ, with the value that is wanted."""
    settings, wanted_settings = before.model_dump(mode="json"), wanted.model_dump(mode="json")
    for section in Config.model_fields:
        yield from _changes(section, settings[section], wanted_settings[section])


def _changes(key: str, before: Any, wanted: Any) -> Iterator[tuple[str, Any]]:
    """Yields the dotted keys below `key` that differ, with the value that is wanted."""
    if isinstance(before, dict) and isinstance(wanted, dict):
        for name in {**before, **wanted}:
            yield from _changes(f"{key}.{name}", before.get(name, ABSENT), wanted.get(name, ABSENT))
    elif before != wanted:
        yield key, wanted


def job_of(
    layout: Layout,
    config: Config,
    folder: RunFolder,
    classes: Classes,
    import_path: Path | None,
    resume: Path | None = None,
    sockets: Path | None = None,
) -> tuple[Job, list[str]]:
    """Returns the job, and what is said before its first iteration; writes nothing.

    `sockets` is a private folder with a short path, that no other job has at the same time; None:
    that of the runtime.
    """
    names, trainers = names_of(layout), layout.holding("trainer")
    sockets = sockets or runtime.run_directory()
    plan = group = None
    if trainers and config.cluster is None:  # else each host makes its own, and its wires
        plan = reduction_of(config, layout, trainer=classes[trainers[0].roles[-1]])
        group = create_group(
            [names[gmi.gmi_id] for gmi in trainers],
            [gmi.gpu_id for gmi in trainers],
            strategy=plan.strategy,
            wire=config.comm.wire,
            directory=sockets,
        )
    job = Job(
        layout=layout,
        config=config,
        group=group,
        sockets=sockets,
        folder=folder.path,
        resume=resume,
        classes=classes,
        role_folder=import_path,
        session=uuid.uuid4().hex,
        tally=create_tally(len(layout.gmis), COUNTERS),
        wires=wires_of(layout, sockets) if config.cluster is None else Wires(),
        lock=lock_of(folder.path),
        plan="" if plan is None else json.dumps(plan.as_json(), indent=1),
    )
    return job, list(startup_notes(config, layout, plan))


def startup_notes(config: Config, layout: Layout, plan: ReductionPlan | None) -> Iterator[str]:
    """Yields a line each of what was left out, chosen and assumed; none if there is nothing."""
    if config.run.profile:
        yield PROFILED
    for gpu in layout.topology.left_out:
        yield f"not used: {gpu}"
    if reason := backend_reason(config, layout):
        yield reason
    if why := why_none(config, layout):
        yield f"no noise scale: {why}"
    if plan is not None and plan.notes:  # else nothing was measured or assumed
        yield f"reduction: {plan.strategy}, {plan.why}"
        yield from plan.notes
