"""Lists what of a config can be tuned here: all candidates that can run, and what is held.

How many GMIs, by which backend, with how much over-commitment, evenly or not. In a row `num_env`
rises by powers of two and the half steps between. Algorithm `paper` (GMI-DRL, Algorithm 2) knows
powers of two alone, of both, and the backend that `auto` means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gmi_drl.gmi.backends.backend import GPU_BACKENDS
from gmi_drl.placement import (
    AUTO,
    Config,
    ConfigError,
    Fault,
    Layout,
    LayoutConfig,
    Topology,
    check,
    choose_backend,
    counted,
    layout_of,
    resolved,
    sliced,
    to_yaml,
)
from gmi_drl.placement.checks.layout import layout_faults
from gmi_drl.placement.resolve import shape_of
from gmi_drl.placement.templates import Roles

from .candidate import Candidate, DeviceSplit, Space
from .keep import (
    SAME,
    least_gmis,
    least_horizon,
    may_grow,
    own_update,
    prediction_of,
    update_of,
)

_UPDATES: Final = 20  # that a run must have
_COUNTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # GMIs of a device
_OVERCOMMIT: Final = 2.0  # 100 / (0.5 n) percent for each of n GMIs, as NVIDIA suggests for MPS
_NUM_ENV: Final = {"gpu": (128, 65_536), "cpu": (4, 4_096)}  # the range that `null` means


def space_of(
    config: Config, topology: Topology, *, works: Sequence[str] | None = None
) -> tuple[Space, list[str]]:
    """Lists every candidate of `config` that `check` lets run here, and words what is held fixed.

    `works`: the backends that were found to work; None: those not known to be unusable. ConfigError
    where there is nothing to tune, or no candidate can run.
    """
    if config.layout.file is not None:
        rule = "it says which GMIs there are, and these are what tuning finds"
        remedy = "Leave it out, or name a template."
        raise ConfigError([Fault("layout.file", config.layout.file, rule, remedy)])
    if ignored := _unused_counts(config):
        raise ConfigError([ignored])
    if config.template.mode != config.mode:  # whatever is tried
        raise ConfigError(check(config, topology))
    faults: list[Fault] = []
    dropped: dict[int, Fault] = {}  # the first fault of each number of GMIs
    rows = []
    for row in _rows_of(config, topology, works):
        candidates = []
        for num_env in _ladder_of(config, topology):
            option = _candidate(config, topology, row, num_env)
            if option is None:
                continue
            refused = option if isinstance(option, Fault) else _refusal(config, topology, option)
            if refused is not None:
                refused = _fault_of_count(config, row, refused)
                faults.append(refused)
                dropped.setdefault(row.gmi_per_gpu, refused)
            elif isinstance(option, Candidate):
                candidates.append(option)
        if candidates:
            rows.append(tuple(candidates))
    if not rows:
        by_key = {fault.where: fault for fault in reversed(faults)}  # one of each kind is enough
        fewest = resolved(config, gmi_per_gpu=least_gmis(config, topology))  # if there is no row
        raise ConfigError(list(reversed(by_key.values())) or check(fewest, topology))
    held = list(_held_fixed(config, topology))
    most = most_samples(config, topology)
    if most is not None and any(fault.where == "run.total_steps" for fault in faults):
        held.append(
            f"updates of at most {most:,} steps: a run of {config.run.total_steps:,} has "
            f"{_UPDATES} or more"
        )
    counts = {row[0].row.gmi_per_gpu for row in rows}
    for count in config.tune.gmi_per_gpu or ():
        if count not in counts and (fault := dropped.get(count)):
            rule = fault.rule if fault.where == "tune.gmi_per_gpu" else str(fault)
            held.append(f"tune.gmi_per_gpu without {count}, which cannot run here: {rule}")
    return Space(tuple(rows)), held


def auto_faults(config: Config, topology: Topology) -> list[Fault]:
    """Returns what `check` lists; where the config says `auto`, nothing if a candidate can run."""
    faults = check(config, topology)
    if config.is_resolved:
        return faults
    try:
        space_of(config, topology)
    except ConfigError as error:
        return faults or [fault for fault in error.faults if isinstance(fault, Fault)]
    return []


def most_samples(config: Config, topology: Topology) -> int | None:
    """Returns the largest update that is tried, the config's or a power of two; None: no limit."""
    if config.mode == "serving" or config.tune.batch is not None:
        return None
    own = own_update(config, topology)
    return max(own, 1 << max(0, (config.run.total_steps // _UPDATES).bit_length() - 1))


def config_of(config: Config, candidate: Candidate, layout_file: Path | None = None) -> Config:
    """Returns `config` with a candidate's values; uneven `percents` need a layout file."""
    row = candidate.row
    chosen = resolved(config, gmi_per_gpu=row.gmi_per_gpu, num_env=candidate.num_env)
    update: dict[str, object] = dict(candidate.changes)
    if candidate.horizon != config.algorithm.horizon:
        update["horizon"] = candidate.horizon
    if update:
        algorithm = chosen.algorithm.model_copy(update=update)
        chosen = chosen.model_copy(update={"algorithm": algorithm})
    if row.backend in GPU_BACKENDS:
        changes: dict[str, object] = {"backend": row.backend}
        if row.backend == "mps":
            changes["sm_overcommit"] = row.sm_overcommit
        hardware = chosen.hardware.model_copy(update=changes)
        chosen = chosen.model_copy(update={"hardware": hardware})
    if row.percents is not None:
        assert layout_file is not None, "shares that differ are said by a layout file"
        layout = LayoutConfig(file=str(layout_file.absolute()))
        chosen = chosen.model_copy(update={"layout": layout})
    return chosen


def own_of(config: Config, space: Space) -> Candidate | None:
    """Returns the candidate that is `config` as it is given; None if none of `space` is."""
    own = (config.layout.gmi_per_gpu, config.env.num_env, config.algorithm.horizon)
    candidates = (candidate for row in space.rows for candidate in row)
    return next((c for c in candidates if (c.row.gmi_per_gpu, c.num_env, c.horizon) == own), None)


def layout_text(config: Config, candidate: Candidate, topology: Topology) -> str:
    """Returns the layout file of a candidate with `percents`, as YAML."""
    return to_yaml(_layout_with_percents(config, candidate, topology))


def _fault_of_count(config: Config, row: DeviceSplit, fault: Fault) -> Fault:
    """Returns the fault, by the key that asked for so many GMIs."""
    counts = config.tune.gmi_per_gpu or ()
    own = config.layout.gmi_per_gpu == row.gmi_per_gpu
    if fault.where != "layout.gmi_per_gpu" or row.gmi_per_gpu not in counts or own:
        return fault
    rule = f"with {row.gmi_per_gpu}: {fault.rule}"
    return Fault("tune.gmi_per_gpu", list(counts), rule, fault.remedy)


def _candidate(
    config: Config, topology: Topology, row: DeviceSplit, num_env: int
) -> Candidate | Fault | None:
    """Returns the candidate with its update by `tune.keep`; a Fault if there is none to try.

    None where a row of larger updates would have one that is as large.
    """
    update = update_of(config, topology, row.gmi_per_gpu, num_env, grown=row.grown)
    if isinstance(update, Fault):
        return update
    if row.grown and update.samples <= (1 + SAME) * own_update(config, topology):
        return None
    most = most_samples(config, topology)
    longer = 1 / prediction_of(config, topology).efficiency(update.samples, update.horizon)
    if most is None or update.samples <= most * (longer if row.grown else 1):
        return Candidate(row, num_env, update.horizon, update.samples, update.changes)
    return Fault(
        "run.total_steps", config.run.total_steps, f"an update would take {update.samples:,} "
        f"steps, and a run with fewer than {_UPDATES} updates learns nothing",
        "Raise it, or lower tune.min_num_env.",
    )  # fmt: skip


def _refusal(config: Config, topology: Topology, candidate: Candidate) -> Fault | None:
    """Says why a candidate cannot run here; None if it can."""
    chosen = _config_with_even_shares(config, candidate)
    faults = check(chosen, topology)
    if not faults and candidate.row.percents is not None:
        faults = layout_faults(_layout_with_percents(config, candidate, topology), chosen.hardware)
    return faults[0] if faults else None


def _config_with_even_shares(config: Config, candidate: Candidate) -> Config:
    return config_of(config, replace(candidate, row=replace(candidate.row, percents=None)))


def _layout_with_percents(config: Config, candidate: Candidate, topology: Topology) -> Layout:
    percents = candidate.row.percents
    assert percents is not None, candidate
    chosen = _config_with_even_shares(config, candidate)
    layout = layout_of(chosen, topology)
    place = {gmi: number for gmis in layout.mpl for number, gmi in enumerate(gmis)}
    shares = tuple(replace(gmi, sm_percent=percents[place[gmi.gmi_id]]) for gmi in layout.gmis)
    return sliced(replace(layout, gmis=shares), chosen.hardware)


def _held_fixed(config: Config, topology: Topology) -> Iterator[str]:
    """Lists what no candidate changes, as the report says it."""
    algorithm, tune = config.algorithm, config.tune
    yield f"env {config.env.id}"
    yield f"mode {config.mode}, template {config.template.name}"
    trains = config.mode != "serving"
    if trains:
        sizes = algorithm.network
        network = sizes if isinstance(sizes, str) else ":".join(map(str, sizes))
        yield f"algorithm {algorithm.name} with network {network}{algorithm.effort}"
    if trains and algorithm.whole_episodes:
        yield f"an update of {algorithm.update_text(0, 0, '')}"
    elif trains and tune.keep == "update":
        least = f"down to {least_horizon(algorithm):,}"
        larger = ", or updates grow" if may_grow(config) else ""
        own = f"an update of {own_update(config, topology):,} steps"
        yield f"{own} (the horizon follows, {least}{larger})"
    elif trains:
        kept = " and minibatches of one size" if tune.keep == "gradient_steps" else ""
        yield f"horizon {algorithm.horizon}{kept} (the update follows num_env and the GMIs)"
    if config.env.num_env != AUTO and config.layout.gmi_per_gpu == AUTO:
        yield f"num_env {config.env.num_env}"
    if config.layout.gmi_per_gpu != AUTO and config.env.num_env == AUTO:
        yield f"gmi_per_gpu {config.layout.gmi_per_gpu}"
    if config.hardware.backend != "auto":
        yield f"backend {config.hardware.backend}"
    if trains:
        yield f"reduction {config.comm.reduction}, wire {config.comm.wire}"
    devices = topology.devices
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    yield f"{counted(len(devices), 'device')}: {names}"


def _rows_of(
    config: Config, topology: Topology, works: Sequence[str] | None
) -> Iterator[DeviceSplit]:
    """Yields all rows, the fewest GMIs first. `works`: see `space_of`."""
    for row in _splits_of(config, topology, works):
        yield row
        if may_grow(config):
            yield replace(row, grown=True)


def _splits_of(
    config: Config, topology: Topology, works: Sequence[str] | None
) -> Iterator[DeviceSplit]:
    """Yields all ways to cut a device."""
    cores = min((len(device.cores) for device in topology.devices), default=0)
    for count in _counts(config, topology, cores):
        for backend in _backends(config, topology, works, count):
            if backend != "mps":
                yield DeviceSplit(count, backend)
                continue
            overcommit = config.hardware.sm_overcommit
            yield DeviceSplit(count, backend, overcommit)
            if count < 2 or config.tune.algorithm == "paper":
                continue
            if overcommit == 1.0:
                yield DeviceSplit(count, backend, _OVERCOMMIT)
            shape = replace(shape_of(config, topology), gmi_per_gpu=count)
            for percents in _unequal_percents(config.template.planned(shape)[0]):
                yield DeviceSplit(count, backend, 1.0, percents)


def _unused_counts(config: Config) -> Fault | None:
    """Returns a fault where `tune.gmi_per_gpu` asks for numbers of GMIs that are not free."""
    counts, own = config.tune.gmi_per_gpu, config.layout.gmi_per_gpu
    if counts is None or own == AUTO or config.env.num_env != AUTO or set(counts) == {own}:
        return None
    return Fault(
        "tune.gmi_per_gpu", list(counts), f"no other number than layout.gmi_per_gpu, {own}, is "
        "tried where that is a number and env.num_env is auto",
        "Use layout.gmi_per_gpu: auto, or leave tune.gmi_per_gpu out.",
    )  # fmt: skip


def _counts(config: Config, topology: Topology, cores: int) -> list[int]:
    """Lists how many GMIs of a device to try, the fewest first."""
    if config.layout.gmi_per_gpu != AUTO and config.env.num_env == AUTO:
        return [config.layout.gmi_per_gpu]
    wanted = config.tune.gmi_per_gpu
    if wanted is not None:
        own = config.layout.gmi_per_gpu
        return sorted({*wanted, own} if own != AUTO else {*wanted})
    on_cores = any(device.kind == "cpu" for device in topology.devices)
    # Each GMI is a process that drives its GPU from a core: with fewer cores they take turns there.
    most = cores if on_cores else max(2, cores)
    counts = {count for count in _COUNTS if least_gmis(config, topology) <= count <= most}
    if config.tune.algorithm == "paper":
        return sorted(count for count in counts if count & (count - 1) == 0)
    if on_cores and cores >= least_gmis(config, topology):
        counts.add(cores)  # a core for each
    if least_gmis(config, topology) <= config.layout.gmi_per_gpu <= most:  # not auto
        counts.add(config.layout.gmi_per_gpu)  # the config as given, to be beaten
    return sorted(counts)


def _backends(
    config: Config, topology: Topology, works: Sequence[str] | None, count: int
) -> Sequence[str]:
    """Lists the backends to try: one, unless the config leaves it open and GMIs share a GPU."""
    if config.hardware.backend != "auto":
        return [config.hardware.backend]
    default = choose_backend(config.mode, topology, count)[0]
    if default == "cpu" or count == 1 or config.tune.algorithm == "paper":
        return [default]
    unusable = dict(topology.unusable)
    usable = [n for n in GPU_BACKENDS if (n not in unusable if works is None else n in works)]
    return [default, *(name for name in usable if name != default)]


def _unequal_percents(device: Sequence[Roles]) -> Iterator[tuple[int, ...]]:
    """Yields shares of SMs where roles differ (GMI-DRL, Table 3): two thirds for one of the two."""
    kinds = list(dict.fromkeys(device))
    if len(kinds) == 2:
        for percents in ((67, 33), (33, 67)):
            share = dict(zip(kinds, percents, strict=True))
            yield tuple(max(1, share[roles] // device.count(roles)) for roles in device)


def _ladder_of(config: Config, topology: Topology) -> list[int]:
    """Returns the `num_env` of a row, rising."""
    if config.env.num_env != AUTO and config.layout.gmi_per_gpu == AUTO:
        return [config.env.num_env]
    least, most = _NUM_ENV[topology.devices[0].kind]
    # A bound that is given alone moves the other if it must.
    least = config.tune.min_num_env or min(least, config.tune.max_num_env or least)
    most = config.tune.max_num_env or max(most, least)
    powers = [1 << exponent for exponent in range(most.bit_length())]
    sizes = {*powers}
    if config.tune.algorithm != "paper":
        sizes |= {power * 3 // 2 for power in powers}
        sizes.add(config.env.num_env)  # the config as given, to be beaten, or auto
    return sorted(size for size in sizes if least <= size <= most) or [least]
