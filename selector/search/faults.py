"""Checks a search: every value that it may draw must be valid, and its devices must be there."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from gmi_drl.gmi import DiscoveryError
from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.placement import (
    ABSENT,
    ALGORITHMS,
    AUTO,
    Config,
    Fault,
    LayoutError,
    RangeConfig,
    Topology,
    check,
    counted,
    layout_of,
    simplest,
)
from gmi_drl.placement.checks.config import learning_faults, one_machine_faults
from gmi_drl.placement.config.schema import ConfigSchema, explain
from gmi_drl.placement.faults import closest
from gmi_drl.placement.slicing import hardware_of_parts, part_of, why_no_parts
from gmi_drl.roles.envs import check_env

from .hyperband import brackets_of
from .ranges import Ranges, applied, text_of

# These must fit each other (minibatches divide the samples of an update), so their values are
# listed, and all combinations are looked at. Of any other key its own range is all that counts.
_JOINT: Final = ("env.num_env", "algorithm.horizon", "algorithm.minibatches")
_BACKENDS: Final = ("auto", "cpu", "direct", "mig")  # of a GMI that has its GPU to itself
_MOST_COMBINATIONS: Final = 10_000
_MOST_DRAWS: Final = 1_000  # trials whose values are looked at before a search
_LATER: Final = 200  # draws that stand for what members of a population come to
_CORES: Final = 64  # of a device, where nothing but the number of GMIs is asked for
# Settings that give a checkpoint its shapes, or are used at the beginning alone.
_FIXED_KEYS: Final = (
    "env.num_env", "algorithm.network", "algorithm.activation", "algorithm.init_log_std",
    "algorithm.normalize_observation", "algorithm.normalize_value", "algorithm.layer_norm",
    "algorithm.share_layers", "algorithm.recurrent", "algorithm.dueling", "algorithm.noisy",
    "algorithm.distributional", "algorithm.atoms", "algorithm.value_range", "algorithm.quantiles",
    "algorithm.critics", "algorithm.mixing", "algorithm.blocks", "algorithm.channels",
    "algorithm.games", "algorithm.replay_capacity", "algorithm.sampler", "algorithm.n_step",
    "algorithm.hindsight", "algorithm.burn_in", "algorithm.ensemble", "algorithm.model_network",
)  # fmt: skip
# Settings that are already part of the steps that a checkpoint keeps.
_KEPT_STEP_KEYS: Final = ("algorithm.reward_scale", "algorithm.bootstrap_time_limit")


def section_faults(config: Config) -> list[Fault]:
    """Lists what is wrong with the section; without, every config that can be drawn is valid."""
    if config.search is None:
        return []
    faults: list[Fault] = []
    for key, span in config.search.ranges.items():
        fault = _key_fault(config, key, span)
        faults += [fault] if fault is not None else _value_faults(config, key, span)
    faults = faults or [*_combination_faults(config)] or [*_draw_faults(config)]
    return [*faults, *_length_faults(config)]


def explained(config: Config, error: ValidationError) -> Fault:
    """Returns what the schema says of values that were applied to `config`."""
    return explain(error, {}, schema=ConfigSchema(algorithm=type(config.algorithm)))[0]


def search_faults(config: Config) -> list[Fault]:
    """Lists why `gmi-drl search` cannot run this config; `placement.check` has the rest."""
    if config.search is None:
        example = "search: {ranges: {algorithm.learning_rate: {log_uniform: [1e-4, 1e-2]}}}"
        rule = "missing; it says which hyper-parameters to look for"
        return [Fault("search", ABSENT, rule, f"Add for example {example}.")]
    alone = one_machine_faults(config, "gmi-drl search")
    return [*alone, *section_faults(config), *_context_faults(config)]


def _key_fault(config: Config, key: str, span: RangeConfig) -> Fault | None:
    """Says why a search may not change a key, or not by this kind of range."""
    assert config.search is not None
    where = f"search.ranges.{key}"
    # A key of another algorithm is told of by the schema.
    algorithms = [config.algorithm, *(settings() for settings in ALGORITHMS.values())]
    keys = [f"algorithm.{name}" for algorithm in algorithms for name in algorithm.searchable]
    keys.append("env.num_env")
    if key not in keys:
        hint = closest(key, keys) or closest(f"algorithm.{key}", keys)
        rule = (
            "a search changes keys of algorithm, but name and optimizer, and env.num_env: what "
            "else there is changes what is learned, or where"
        )
        return Fault(where, ABSENT, rule, f"Did you mean {hint}?" if hint else "Remove it.")
    if key in _JOINT and span.choice is None:
        rule = "minibatches must divide num_env x horizon, so not every number of a range fits"
        return Fault(where, ABSENT, rule, "List the values: choice: [...].")
    if span.choice is not None and key == "env.num_env" and "auto" in span.choice:
        rule = "a trial has a number of environments"
        return Fault(f"{where}.choice", "auto", rule, "Give numbers alone.")
    if config.search.algorithm == "pbt" and (why := _fixed_reason(config, key, span)):
        rule = f"{why}, and members of a population go on from each other's checkpoints"
        return Fault(where, ABSENT, rule, "Remove it, or use algorithm hyperband.")
    return None


def _fixed_reason(config: Config, key: str, span: RangeConfig) -> str:
    """Says why a member of a population cannot change a key while it trains; "" if it can."""
    algorithm = config.algorithm
    if key in _FIXED_KEYS:
        return "it is fixed when a trial begins"
    if key in _KEPT_STEP_KEYS and algorithm.kept_steps:
        return "steps that are kept have it inside"
    remembers = getattr(algorithm, "recurrent", None) is not None
    if key == "algorithm.horizon" and remembers and getattr(algorithm, "replay_save", False):
        return "sequences that are kept have its length"
    if key == "algorithm.temperature" and None in (span.choice or ()):
        return "one that is learned (null) is among the parameters"
    return ""


def _value_faults(config: Config, key: str, span: RangeConfig) -> list[Fault]:
    """Lists what the schema says of the values: of a choice all, of a range the first."""
    faults = []
    for kind, shown, value in _probes(span):
        try:
            applied(config, {key: value})
        except ValidationError as error:
            rule = explained(config, error).rule
            where, rule = f"search.ranges.{key}.{kind}", f"{key} {rule}"
            remedy = "Correct the range."
            if kind == "integer" and value != shown:
                rule = f"{value} can be drawn, and {rule}"
                remedy = "List the values that fit: choice: [...]."
            faults.append(Fault(where, shown, rule, remedy))
    return faults if span.choice is not None else faults[:1]


def _probes(span: RangeConfig) -> Iterator[tuple[str, Any, Any]]:
    """Yields the kind of range, what a fault shows, and the value."""
    for kind in ("uniform", "log_uniform"):
        if (bounds := getattr(span, kind)) is not None:
            low, high = bounds
            yield from ((kind, value, value) for value in bounds)
            yield kind, list(bounds), low + (high - low) / math.pi
    for kind in ("integer", "choice"):
        yield from ((kind, value, value) for value in getattr(span, kind) or ())
    if span.integer is not None and span.integer[0] < span.integer[1]:
        yield "integer", list(span.integer), span.integer[0] + 1  # where it must be even


def _combination_faults(config: Config) -> Iterator[Fault]:
    """Yields the first combination that does not fit; without joint keys `check` finds it."""
    assert config.search is not None
    ranges = config.search.ranges
    joint = {key: ranges[key].choice or () for key in _JOINT if key in ranges}
    number = math.prod(map(len, joint.values()))
    if number > _MOST_COMBINATIONS:
        most = f"{number:,} combinations, and at most {_MOST_COMBINATIONS:,} are looked at"
        rule = f"{' x '.join(joint)}: {most}"
        yield Fault("search.ranges", ABSENT, rule, "List fewer values.")
        return
    if not joint or (config.env.num_env == AUTO and "env.num_env" not in joint):
        return
    counts = _counts(config)
    # As the schema has them: 8.0 is 8.
    valid = [[_valid(config, key, value) for value in values] for key, values in joint.items()]
    for values in itertools.product(*valid):
        for fault in learning_faults(_unchecked(config, joint, values), *counts):
            if fault.where == "algorithm.minibatches":
                rule = f"algorithm.minibatches={fault.value} can be drawn; it {fault.rule}"
                remedy = "List values of which all combinations fit."
                yield Fault("search.ranges", ABSENT, rule, remedy)
                return


def _draw_faults(config: Config) -> Iterator[Fault]:
    """Yields the first fault of values that trials draw, each of which fits its own range."""
    settings = config.search
    assert settings is not None
    counts = _counts(config)
    own_faults = learning_faults(simplest(config), *counts)  # which `check` tells of
    ranges, trials = Ranges(settings.ranges, settings.seed), settings.population
    if settings.algorithm == "hyperband":
        rungs = brackets_of(config.run.total_steps, settings.min_steps, settings.eta)
        trials = sum(bracket[0].trials for bracket in rungs[: settings.brackets])
    extra = _LATER if settings.algorithm == "pbt" else 0
    for trial in range(min(trials, _MOST_DRAWS) + extra):
        values = ranges.draw(trial)
        try:
            faults = _learning_faults(applied(config, values), counts)
        except ValidationError as error:
            faults = [explained(config, error)]
        for fault in faults:
            if fault not in own_faults:
                subject = f"trial {trial} would" if trial < trials else "a member can come to"
                values_text = ", ".join(f"{key}={text_of(value)}" for key, value in values.items())
                rule = f"{subject} have {values_text}, and {fault.where} {fault.rule}"
                remedy = "List values (choice) that fit each other."
                yield Fault("search.ranges", ABSENT, rule, remedy)
                return


def _learning_faults(config: Config, counts: tuple[int, int]) -> list[Fault]:
    return [] if config.env.num_env == AUTO else learning_faults(config, *counts)


def _valid(config: Config, key: str, value: Any) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(applied(config, {key: value}), section), name)


def _unchecked(config: Config, keys: Iterable[str], values: Iterable[Any]) -> Config:
    """Returns `config` with values, unchecked: a hundred times as fast as `applied`."""
    changes: dict[str, dict[str, Any]] = {}
    for key, value in zip(keys, values, strict=True):
        section, _, name = key.partition(".")
        changes.setdefault(section, {})[name] = value
    update = {s: getattr(config, s).model_copy(update=keys) for s, keys in changes.items()}
    return config.model_copy(update=update)


def _counts(config: Config) -> tuple[int, int]:
    """Returns how many GMIs of a trial sample, and how many train; 1 where `check` says why not."""
    assert config.search is not None
    devices = config.search.devices
    config = _unchecked(config, ["env.num_env"], [1])
    if not config.is_resolved or config.layout.file is not None:
        return 1, 1
    topology = Topology.from_cores(range(_CORES * devices), devices)
    with contextlib.suppress(LayoutError):
        layout = layout_of(config, topology)
        return len(layout.holding("agent")), len(layout.holding("trainer"))
    return 1, 1


def _context_faults(config: Config) -> Iterator[Fault]:
    """Yields faults of other sections: a trial trains, in a layout of its own on its devices."""
    if config.mode == "serving":
        yield Fault("mode", config.mode, "a search trains", "Use mode: sync, or async.")
    elif config.layout.file is not None:
        rule = "it names devices, and trials are dealt theirs"
        yield Fault("layout.file", config.layout.file, rule, "Use layout.template.")
    elif config.layout.gmi_per_gpu == AUTO:
        rule = "a search is about how a policy learns, and how many GMIs learn is part of it"
        yield Fault("layout.gmi_per_gpu", "auto", rule, "Give a number.")
    ranges = config.search.ranges if config.search is not None else {}
    if config.env.num_env == AUTO and "env.num_env" not in ranges:
        rule = "a search is about how a policy learns, and the batch is part of it"
        remedy = "Give a number, or a choice of numbers in search.ranges."
        yield Fault("env.num_env", "auto", rule, remedy)


def _length_faults(config: Config) -> Iterator[Fault]:
    settings, total = config.search, config.run.total_steps
    assert settings is not None
    for name in ("min_steps", "interval_steps"):
        steps = getattr(settings, name)
        if steps is not None and steps > total:
            rule = f"must be at most run.total_steps, {total:,}"
            yield Fault(f"search.{name}", steps, rule, "Lower it, or raise run.total_steps.")
            return
        if steps is not None and steps < (update := _least_update(config)):
            rule = f"an update takes {update:,} steps, and no trial trains less"
            yield Fault(f"search.{name}", steps, rule, f"Use {update} or more.")
            return
    if settings.algorithm == "hyperband" and settings.brackets is not None:
        available = len(brackets_of(total, settings.min_steps, settings.eta))
        if settings.brackets > available:
            yield Fault(
                "search.brackets", settings.brackets, f"there are {available} from min_steps to "
                f"run.total_steps, {total:,}, by eta {settings.eta}",
                f"Use {available} or fewer, or lower min_steps.",
            )  # fmt: skip


def _least_update(config: Config) -> int:
    """Returns the environment steps of the smallest update that can be drawn, at the least."""
    assert config.search is not None
    if config.algorithm.whole_episodes:
        return 1
    least = 1
    for key in ("env.num_env", "algorithm.horizon"):
        section, _, name = key.partition(".")
        span = config.search.ranges.get(key)
        values = [int(v) for v in (span and span.choice) or () if isinstance(v, (int, float))]
        least *= min(values, default=getattr(getattr(config, section), name))
    return least


def trial_topologies(config: Config) -> list[Topology]:
    """Returns the devices of each trial at a time, for a config without `placement_faults`."""
    assert config.search is not None
    settings, topology = config.search, find_devices(config)
    cores, size, parts = _cores_of(topology), settings.devices, settings.trials_per_device
    if cores is None:
        devices = topology.devices
    else:
        number = len(cores) // settings.cores
        devices = Topology.from_cores(cores[: number * settings.cores], number).devices
    groups = [devices[i : i + size] for i in range(0, len(devices) - size + 1, size)]
    if parts > 1:  # of one device each; all GPUs have one trial before any has two
        groups = [(part_of(gpu, parts, n),) for n in range(parts) for (gpu,) in groups]
    return [
        Topology(
            tuple(replace(device, index=i) for i, device in enumerate(group)),
            unusable=topology.unusable,
            cuda=topology.cuda,
        )
        for group in groups[: settings.trials_at_once]
    ]


def placed(topology: Topology, config: Config, parts: int) -> Config:
    """Returns a trial's config as it is on these devices, of which `parts` trials share each."""
    hardware = config.hardware
    changes: dict[str, Any] = {"num_gpus": len(topology.devices)}
    if parts > 1:
        changes |= hardware_of_parts(hardware, topology, parts)
    return config.model_copy(update={"hardware": hardware.model_copy(update=changes)})


def gpus_of_servers(topologies: Iterable[Topology], config: Config) -> list[str]:
    """Returns the UUIDs of the GPUs on which trials are clients of one MPS server."""
    assert config.search is not None
    parts = config.search.trials_per_device
    if parts == 1:
        return []
    return sorted(
        {
            str(device.uuid)
            for topology in topologies
            if placed(topology, config, parts).hardware.backend == "mps"
            for device in topology.devices
        }
    )


def placement_faults(config: Config) -> list[Fault | str]:
    """Returns every reason this machine cannot search as `config` says."""
    faults: list[Fault | str] = [*search_faults(config)]
    faults += check_env(config.env.id, config.env.adapter, config.env.options)
    backend = config.hardware.backend
    parts = config.search.trials_per_device if config.search is not None else 1
    if backend not in _BACKENDS and config.layout.gmi_per_gpu == 1 and parts == 1:
        rule = "each GMI of this search has a GPU to itself"
        faults.append(Fault("hardware.backend", backend, rule, f"Use {', '.join(_BACKENDS)}."))
    try:
        topology = find_devices(config)
    except DiscoveryError as error:
        return [*faults, str(error)]
    if not faults:
        faults += _device_faults(config, topology)
    if not faults and config.search is not None:
        first = applied(config, Ranges(config.search.ranges, config.search.seed).draw(0))
        topology = trial_topologies(config)[0]
        faults += check(placed(topology, first, parts), topology)
    return faults


def _device_faults(config: Config, topology: Topology) -> Iterator[Fault]:
    assert config.search is not None
    settings, cores = config.search, _cores_of(topology)
    if cores is None:
        available, unit = len(topology.devices), "GPUs"
    elif settings.cores > len(cores):
        rule = f"the machine has {counted(len(cores), 'core')}"
        yield Fault("search.cores", settings.cores, rule, f"Use {len(cores)} or fewer.")
        return
    else:
        available, unit = len(cores) // settings.cores, f"groups of {settings.cores} cores"
    if (parts := settings.trials_per_device) > 1:
        reasons = _why_no_parts(config, topology)
        if reasons:
            yield Fault("search.trials_per_device", parts, *reasons)
            return
        available, unit = available * parts, f"parts of {unit}"
    if settings.devices > available:
        rule = f"there are {available} {unit}"
        yield Fault("search.devices", settings.devices, rule, f"Use {available} or fewer.")
        return
    if settings.devices > 1:
        available, unit = available // settings.devices, f"groups of {settings.devices} {unit}"
    if settings.trials_at_once is not None and settings.trials_at_once > available:
        rule = f"there are {available} {unit}, and each trial has its own"
        remedy = f"Use {available} or fewer, or leave it out for all."
        yield Fault("search.trials_at_once", settings.trials_at_once, rule, remedy)


def _why_no_parts(config: Config, topology: Topology) -> tuple[str, str] | None:
    """Returns why trials cannot share a device, and what to do; None if they can."""
    assert config.search is not None
    if _cores_of(topology) is not None:
        return "search.cores shares out cores", "Leave it out."
    if config.search.devices > 1:
        rule = f"a trial of {config.search.devices} devices has them to itself"
        return rule, "Use search.devices: 1, or leave it out."
    why = why_no_parts(config.hardware, topology)
    return (why, "Leave it out.") if why else None


def _cores_of(topology: Topology) -> list[int] | None:
    """Returns all cores, where devices are groups of them; None on GPUs."""
    if any(device.kind == "gpu" for device in topology.devices):
        return None
    return sorted(core for device in topology.devices for core in device.cores)
