"""What of a config can be tuned on these devices: all candidates that can run, and what is held.

Rows are ways of cutting a device: how many GMIs, by which backend, with how much over-commitment,
evenly or not. In a row `num_env` rises by powers of two and the half steps between. Algorithm
`paper` (GMI-DRL, Algorithm 2) knows powers of two alone, of both, and the backend `auto` means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

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
    layout_of,
    settled,
    sliced,
    template_of,
    to_yaml,
)
from gmi_drl.placement.check_layout import layout_faults
from gmi_drl.placement.settle import least_gmis, simplest

from .candidate import Candidate, Row, Space

_COUNTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # GMIs of a device
_GPU_BACKENDS: Final = ("direct", "mps", "mig", "green")
_UPDATES: Final = 20  # that a run must have
_OVERCOMMIT: Final = 2.0  # 100 / (0.5 n) percent for each of n GMIs, as NVIDIA suggests for MPS
_NUM_ENV: Final = {"gpu": (128, 65_536), "cpu": (4, 4_096)}  # the range that `null` means


@dataclass(frozen=True)
class Batch:
    """What an update takes, of all GMIs of all devices: `steps` for each step of the horizon."""

    per_horizon: int

    @classmethod
    def of(cls, config: Config, topology: Topology) -> Batch:
        """Of a settled config with a template.

        In sync modes all GMIs that simulate fill it; in async each trainer takes so many segments.
        """
        template, devices = template_of(config), len(topology.devices)
        per_gpu, num_env = config.layout.gmi_per_gpu, config.env.num_env
        if template == "decoupled":
            trainers = per_gpu * min(devices, config.layout.trainer_gpus)
            return cls(num_env * config.experience.batch_segments * trainers)
        simulating = {"tdg_ex": per_gpu - 1, "tdg": per_gpu // 2}.get(template, per_gpu)
        return cls(num_env * devices * simulating)


def space_of(
    config: Config, topology: Topology, *, works: Sequence[str] | None = None
) -> tuple[Space, list[str]]:
    """Every candidate of `config` that `check` lets run here, and what is held fixed, in words.

    `works`: the backends that were found to work on these GPUs; None: all that are not known to be
    unusable. What the config says `auto` of is free, and if it says it of nothing, both are.
    ConfigError where there is nothing to tune, or no candidate can run.
    """
    if config.layout.file is not None:
        raise ConfigError(
            [
                Fault(
                    "layout.file", config.layout.file, "it says which GMIs there are, and these "
                    "are what tuning finds",
                    "Leave it out, or name a template.",
                )
            ]
        )  # fmt: skip
    faults: list[Fault] = []
    rows = []
    for row in _rows(config, topology, works):
        its = []
        for num_env in _ladder(config, topology):
            found = _candidate(config, topology, row, num_env)
            refused = found if isinstance(found, Fault) else _refused(config, topology, found)
            if refused is not None:
                faults.append(refused)
            elif isinstance(found, Candidate):
                its.append(found)
        if its:
            rows.append(tuple(its))
    if not rows:
        first = {fault.where: fault for fault in reversed(faults)}  # one of each kind is enough
        fewest = settled(config, gmi_per_gpu=least_gmis(config))  # if there is no row to try
        raise ConfigError(list(reversed(first.values())) or check(fewest, topology))
    held = list(_held(config, topology))
    most = most_samples(config, topology)
    if most is not None and any(fault.where == "run.total_steps" for fault in faults):
        held.append(
            f"updates of at most {most:,} steps: a run of {config.run.total_steps:,} has "
            f"{_UPDATES} or more"
        )
    return Space(tuple(rows)), held


def most_samples(config: Config, topology: Topology) -> int | None:
    """The largest batch that is tried: a run of its length must have updates enough to learn.

    That of the config as it is, if that is larger; None where nothing is learned, or the batch is
    held. A power of two otherwise, so that a run a little longer is tuned alike.
    """
    if config.mode == "serving" or config.tune.batch is not None:
        return None
    plain = simplest(config)
    own = Batch.of(plain, topology).per_horizon * plain.algorithm.horizon
    return max(own, 1 << max(0, (config.run.total_steps // _UPDATES).bit_length() - 1))


def config_of(config: Config, candidate: Candidate, layout_file: Path | None = None) -> Config:
    """The settled config that is `config` with a candidate's values.

    A candidate with `percents` needs the layout file that `layout_text` is for.
    """
    row = candidate.row
    found = settled(
        config,
        gmi_per_gpu=row.gmi_per_gpu,
        num_env=candidate.num_env,
        horizon=candidate.horizon if candidate.horizon != config.algorithm.horizon else None,
    )
    hardware: dict[str, object] = {}
    if row.backend != "cpu":
        hardware["backend"] = row.backend
    if row.backend == "mps":
        hardware["sm_overcommit"] = row.sm_overcommit
    if hardware:
        found = found.model_copy(update={"hardware": found.hardware.model_copy(update=hardware)})
    if row.percents is not None:
        assert layout_file is not None, "shares that differ are said by a layout file"
        layout = LayoutConfig(file=str(layout_file.absolute()))
        found = found.model_copy(update={"layout": layout})
    return found


def layout_text(config: Config, candidate: Candidate, topology: Topology) -> str:
    """The layout file of a candidate with `percents`, as YAML."""
    return to_yaml(_uneven(config, candidate, topology))


def batch_sentence(config: Config, topology: Topology, candidate: Candidate) -> str:
    """What becomes of the learning problem with this candidate, in plain words; "" if nothing.

    Compared with the config as it is given, `auto` being what a plain user has.
    """
    plain = simplest(config)
    before = Batch.of(plain, topology).per_horizon * plain.algorithm.horizon
    horizon = ""
    if candidate.horizon != config.algorithm.horizon:
        horizon = f"the horizon is {candidate.horizon:,} instead of {config.algorithm.horizon:,}"
    held = config.tune.batch is not None  # as it is asked for
    if held or candidate.samples == before or config.mode == "serving":
        return horizon
    gmis = plain.layout.gmi_per_gpu
    base = f" ({plain.env.num_env} environments in {gmis} GMI{'s' if gmis > 1 else ''} of a device)"
    return (
        f"an update now takes {candidate.samples:,} steps instead of {before:,}"
        f"{'' if config.is_settled else base}: learning may need other settings; "
        + (horizon or "tune.batch keeps it")
    )


def _rows(config: Config, topology: Topology, works: Sequence[str] | None) -> Iterator[Row]:
    cores = min((len(device.cores) for device in topology.devices), default=0)
    for count in _counts(config, topology, cores):
        for backend in _backends(config, topology, works, count):
            if backend != "mps":
                yield Row(count, backend)
                continue
            given = config.hardware.sm_overcommit
            yield Row(count, backend, given)
            if count < 2 or config.tune.algorithm == "paper":
                continue
            if given == 1.0:
                yield Row(count, backend, _OVERCOMMIT)
            for percents in _unequal(template_of(config), count):
                yield Row(count, backend, 1.0, percents)


def _counts(config: Config, topology: Topology, cores: int) -> list[int]:
    """How many GMIs of a device to try, the fewest first."""
    if config.layout.gmi_per_gpu != AUTO and config.env.num_env == AUTO:
        return [config.layout.gmi_per_gpu]
    on_cores = any(device.kind == "cpu" for device in topology.devices)
    # Each GMI is a process that drives its GPU from a core: with fewer cores they take turns there.
    most = cores if on_cores else max(2, cores)
    counts = {count for count in _COUNTS if least_gmis(config) <= count <= most}
    if config.tune.algorithm == "paper":
        return sorted(count for count in counts if count & (count - 1) == 0)
    if on_cores and cores >= least_gmis(config):
        counts.add(cores)  # a core for each
    return sorted(counts)


def _backends(
    config: Config, topology: Topology, works: Sequence[str] | None, count: int
) -> Sequence[str]:
    """One, unless the config leaves it open and several GMIs are to share a GPU."""
    if config.hardware.backend != "auto":
        return [config.hardware.backend]
    meant = choose_backend(config.mode, topology, count)[0]
    if meant == "cpu" or count == 1 or config.tune.algorithm == "paper":
        return [meant]
    usable = works
    if usable is None:
        usable = [name for name in _GPU_BACKENDS if name not in dict(topology.unusable)]
    return [meant, *(name for name in _GPU_BACKENDS if name in usable and name != meant)]


def _unequal(template: str, count: int) -> Iterator[tuple[int, ...]]:
    """Shares of the SMs where GMIs have different roles: two thirds for the one, and the other.

    The roles' needs differ (GMI-DRL, Table 3), and which needs more the measurement says. Thirds
    are the step after halves; over-commitment covers what lies between, as idle SMs are lent then.
    """
    for one, other in ((67, 33), (33, 67)):
        if template == "tdg_ex":  # the last of a device trains, the others collect
            yield (*[max(1, one // (count - 1))] * (count - 1), other)
        elif template == "tdg":  # a simulator and its agent
            pairs = count // 2
            yield (max(1, one // pairs), max(1, other // pairs)) * pairs


def _ladder(config: Config, topology: Topology) -> list[int]:
    if config.env.num_env != AUTO and config.layout.gmi_per_gpu == AUTO:
        return [config.env.num_env]
    kind = "gpu" if any(device.kind == "gpu" for device in topology.devices) else "cpu"
    least, most = _NUM_ENV[kind]
    # A bound that is given alone moves the other if it must.
    least = config.tune.min_num_env or min(least, config.tune.max_num_env or least)
    most = config.tune.max_num_env or max(most, least)
    found = []
    power = 1
    while power <= most:
        steps = (power,) if config.tune.algorithm == "paper" else (power, power * 3 // 2)
        found += [num for num in steps if least <= num <= most and num not in found]
        power *= 2
    return found or [least]


def _candidate(config: Config, topology: Topology, row: Row, num_env: int) -> Candidate | Fault:
    """The candidate, its horizon by `tune.batch`; a Fault if no horizon keeps the batch."""
    chosen = settled(config, gmi_per_gpu=row.gmi_per_gpu, num_env=num_env)
    each, batch = Batch.of(chosen, topology).per_horizon, config.tune.batch
    if batch is None or not each:
        samples, most = each * config.algorithm.horizon, most_samples(config, topology)
        if most is None or samples <= most:
            return Candidate(row, num_env, config.algorithm.horizon, samples)
        return Fault(
            "run.total_steps", config.run.total_steps, f"an update would take {samples:,} steps, "
            f"and a run with fewer than {_UPDATES} updates learns nothing",
            "Raise it, or lower tune.min_num_env.",
        )  # fmt: skip
    if batch % each:
        return Fault(
            "tune.batch", batch, f"no number of steps of {num_env} environments in each GMI gives "
            f"it, with {row.gmi_per_gpu} on each device",
            f"Use a multiple of {each}, for example {each * max(1, round(batch / each))}, or let "
            "smaller num_env be tried.",
        )  # fmt: skip
    return Candidate(row, num_env, batch // each, batch)


def _refused(config: Config, topology: Topology, candidate: Candidate) -> Fault | None:
    """Why it cannot run here, if it cannot."""
    even = replace(candidate, row=replace(candidate.row, percents=None))
    chosen = config_of(config, even)
    faults = check(chosen, topology)
    if not faults and candidate.row.percents is not None:
        faults = layout_faults(_uneven(config, candidate, topology), chosen.hardware)
    return faults[0] if faults else None


def _uneven(config: Config, candidate: Candidate, topology: Topology) -> Layout:
    percents = candidate.row.percents
    assert percents is not None, candidate
    even = replace(candidate, row=replace(candidate.row, percents=None))
    chosen = config_of(config, even)
    layout = layout_of(chosen, topology)
    place = {gmi: number for its in layout.mpl for number, gmi in enumerate(its)}
    shares = tuple(replace(gmi, sm_percent=percents[place[gmi.gmi_id]]) for gmi in layout.gmis)
    return sliced(replace(layout, gmis=shares), chosen.hardware)


def _held(config: Config, topology: Topology) -> Iterator[str]:
    """What no candidate changes, as the report says it."""
    algorithm, tune = config.algorithm, config.tune
    yield f"env {config.env.id}"
    yield f"mode {config.mode}, template {template_of(config)}"
    if config.mode != "serving":
        sizes = algorithm.network
        network = sizes if isinstance(sizes, str) else ":".join(map(str, sizes))
        yield (
            f"algorithm {algorithm.name} with network {network}, {algorithm.minibatches} "
            f"minibatches, {algorithm.epochs} epochs"
        )
    if tune.batch is None:
        yield f"horizon {algorithm.horizon} (the batch follows num_env and the number of GMIs)"
    else:
        yield f"a batch of {tune.batch:,} steps (the horizon follows)"
    if config.env.num_env != AUTO and config.layout.gmi_per_gpu == AUTO:
        yield f"num_env {config.env.num_env}"
    if config.layout.gmi_per_gpu != AUTO and config.env.num_env == AUTO:
        yield f"gmi_per_gpu {config.layout.gmi_per_gpu}"
    if config.hardware.backend != "auto":
        yield f"backend {config.hardware.backend}"
    if config.mode != "serving":
        yield f"reduction {config.comm.reduction}, wire {config.comm.wire}"
    devices = topology.devices
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    yield f"{len(devices)} {'device' if len(devices) == 1 else 'devices'}: {names}"
