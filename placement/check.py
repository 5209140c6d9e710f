"""Every reason a config cannot run on the devices there are, as a list."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .algorithms import ALGORITHMS_OF
from .config import Config
from .faults import Fault, closest
from .reduction import shape_fault
from .templates import GMIS, OF_MODE, backend_of, naming_roles, num_trainers, template_of
from .topology import Topology


def check(config: Config, topology: Topology) -> list[Fault]:
    """All faults of the placement; empty when the config can run.

    `topology` is what `discover` found for the config's hardware section.
    """
    return [
        *_template(config),
        *_devices(config, topology),
        *_sides(config, topology),
        *_cores(config, topology),
        *_algorithm(config),
        *_minibatches(config),
        *_capacity(config, topology),
        *_compressed(config),
        *_reduction(config, topology),
        *_roles(config),
    ]


def _template(config: Config) -> Iterator[Fault]:
    template, fitting = template_of(config), OF_MODE[config.mode]
    if template not in fitting:
        home = next(mode for mode, its in OF_MODE.items() if template in its)
        yield Fault(
            "layout.template", template, f"it is of mode {home}, and the mode is {config.mode}",
            f"Use {' or '.join(fitting)}, leave it out, or set mode: {home}.",
        )  # fmt: skip
    if config.run.policy is not None and config.mode != "serving":
        yield Fault(
            "run.policy", config.run.policy, f"it is served, and the mode is {config.mode}",
            "Set mode: serving; to train on, use gmi-drl launch --resume.",
        )  # fmt: skip


def _sides(config: Config, topology: Topology) -> Iterator[Fault]:
    """What decoupled and tdg need of the devices."""
    template, found = template_of(config), len(topology.devices)
    trainers, per_gpu = config.layout.trainer_gpus, config.layout.gmi_per_gpu
    if template == "decoupled" and found == 1:
        cores = all(device.kind == "cpu" for device in topology.devices)
        yield Fault(
            "layout.template", template, "simulation and training need a device each, and there "
            "is one",
            "Set hardware.num_gpus: 2, which makes two groups of the cores." if cores
            else "Use mode: sync, which shares a GPU, or more GPUs.",
        )  # fmt: skip
    elif template == "decoupled" and 0 < found <= trainers:
        yield Fault(
            "layout.trainer_gpus", trainers, f"there are {found} devices, and one or more must be "
            "left for simulation",
            f"Use {found - 1} or fewer.",
        )  # fmt: skip
    if template == "tdg" and per_gpu % 2:
        yield Fault(
            "layout.gmi_per_gpu", per_gpu, "template tdg pairs a simulator GMI with an agent GMI "
            "of the same device",
            f"Use {per_gpu + 1}, or template tcg.",
        )  # fmt: skip
    if template == "tdg" and config.env.num_env < 2:
        yield Fault(
            "env.num_env", config.env.num_env, "template tdg simulates one half of a GMI's "
            "environments while the other half is acted for",
            "Use 2 or more, or template tcg.",
        )  # fmt: skip


def _devices(config: Config, topology: Topology) -> Iterator[Fault]:
    wanted, found = config.hardware.num_gpus, len(topology.devices)
    if not found:
        yield Fault("hardware", 0, "no device was found", "Use backend cpu, or auto.")
    elif wanted is not None and wanted > found:
        yield Fault(
            "hardware.num_gpus", wanted, f"there are {found} devices",
            f"Use {found} or fewer, or leave it out for all.",
        )  # fmt: skip
    backend = config.hardware.backend
    kinds = {device.kind for device in topology.devices}
    if backend == "direct" and "cpu" in kinds:
        yield Fault("hardware.backend", backend, "there is no GPU", "Use cpu, or auto.")
    if backend == "cpu" and "gpu" in kinds:
        yield Fault("hardware.backend", backend, "the devices are GPUs", "Use direct, or auto.")


def _cores(config: Config, topology: Topology) -> Iterator[Fault]:
    """On groups of cores each GMI has one or more of its own."""
    groups = [device for device in topology.devices if device.kind == "cpu"]
    if not groups or backend_of(config, topology) != "cpu":
        return
    total = sum(len(group.cores) for group in groups)
    if any(not group.cores for group in groups):
        yield Fault(
            "hardware.num_gpus", len(groups), f"there are {total} cores, and each group needs one",
            f"Use {total} or fewer.",
        )  # fmt: skip
        return
    per_gpu = config.layout.gmi_per_gpu
    tight = min(groups, key=lambda group: len(group.cores))
    if per_gpu > len(tight.cores):
        yield Fault(
            "layout.gmi_per_gpu", per_gpu,
            f"device {tight.index} has {len(tight.cores)} of the {total} cores, and each GMI "
            "needs one",
            f"Use {len(tight.cores)} or fewer"
            + (", or lower hardware.num_gpus." if groups[1:] else "."),
        )  # fmt: skip


def _algorithm(config: Config) -> Iterator[Fault]:
    name, fitting = config.algorithm.name, ALGORITHMS_OF.get(config.mode)
    if fitting is not None and name not in fitting:  # serving trains nothing
        home = next(mode for mode, its in ALGORITHMS_OF.items() if name in its)
        yield Fault(
            "algorithm.name", name, f"it trains in mode {home}, and the mode is {config.mode}",
            f"Use {' or '.join(fitting)}, or set mode: {home}.",
        )  # fmt: skip


def _minibatches(config: Config) -> Iterator[Fault]:
    parts, num_env, horizon = (
        config.algorithm.minibatches, config.env.num_env, config.algorithm.horizon,
    )  # fmt: skip
    if config.mode == "sync":
        rows, what = num_env * horizon, "samples of an update of one GMI"
        factor, its = "horizon", horizon
    elif config.mode == "async":
        # V-trace needs segments whole, so that only environments can be shared out.
        factor, its = "batch_segments", config.experience.batch_segments
        rows, what = num_env * its, "environments in a trainer's batch"
    else:
        return
    if rows % parts:
        small = [n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0]
        divisors = [*small, *(rows // n for n in reversed(small))]
        below = max(n for n in divisors if n <= parts)
        above = next((n for n in divisors if n > parts), None)
        near = str(below) if above is None else f"{below} or {above}"
        yield Fault(
            "algorithm.minibatches", parts,
            f"must divide the {rows} {what} (num_env={num_env} x {factor}={its})",
            f"Use {near}, or change num_env or {factor}.",
        )  # fmt: skip


def _capacity(config: Config, topology: Topology) -> Iterator[Fault]:
    """The links into a trainer must hold what it trains on, and what is not given back yet.

    And one segment more each, which a killed agent may leave there in part.
    """
    if config.mode != "async":
        return
    trainers = num_trainers(config, topology)
    agents = len(topology.devices) * config.layout.gmi_per_gpu - trainers
    batch, capacity = config.experience.batch_segments, config.experience.capacity
    wanted = batch * (2 if trainers > 1 else 1)
    room = (capacity - 1) * agents
    if agents > 0 and room < wanted:
        kept = ", and hold each until the next has begun" if trainers > 1 else ""
        yield Fault(
            "experience.capacity", capacity,
            f"trainers take batches of {batch} segments{kept}, and the links of {agents} agents "
            f"hold {room}, beside one more each that is being sent",
            f"Use {-(-wanted // agents) + 1} or more, or lower batch_segments.",
        )  # fmt: skip


def _compressed(config: Config) -> Iterator[Fault]:
    """Of a segment's channels only observations can be bytes."""
    if others := [name for name in config.experience.lz4 if name != "observation"]:
        yield Fault(
            "experience.lz4", others, "only the channel observation is compressed, if it is uint8",
            "Use [observation], or leave it out.",
        )  # fmt: skip


def _reduction(config: Config, topology: Topology) -> Iterator[Fault]:
    """What the layout's shape allows; what the hardware does, `gmi_drl.comm.capability` says."""
    wanted, per_gpu = config.comm.reduction, config.layout.gmi_per_gpu
    mpl = [range(per_gpu)] * (num_trainers(config, topology) // per_gpu)
    if wanted == "auto" or sum(map(len, mpl)) < 2:  # one GMI is local, whatever is asked for
        return
    if found := shape_fault(wanted, mpl):
        yield Fault("comm.reduction", wanted, *found)


def _roles(config: Config) -> Iterator[Fault]:
    template = template_of(config)
    naming = naming_roles(template)
    known = [role for roles in GMIS[template] for role in roles]
    for name, role in config.roles.items():
        where = f"roles.{name}"
        if name not in known:
            near = closest(name, known)
            yield Fault(
                where, role.class_, f"template {template} has the roles {', '.join(known)}",
                f"Did you mean {near}?" if near else "Use one of them.",
            )  # fmt: skip
        elif name not in naming:
            holder = next(roles for roles in GMIS[template] if name in roles)[-1]
            yield Fault(
                where, role.class_,
                f"template {template} plays all roles of a GMI with one class, named by its "
                f"{holder}",
                f"Move it to roles.{holder}.",
            )  # fmt: skip
