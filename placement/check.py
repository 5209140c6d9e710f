"""Every reason a config cannot run on the devices there are, as a list."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .config import Config
from .faults import Fault, closest
from .templates import ROLES, backend_of
from .topology import Topology


def check(config: Config, topology: Topology) -> list[Fault]:
    """All faults of the placement; empty when the config can run.

    `topology` is what `discover` found for the config's hardware section.
    """
    return [
        *_devices(config, topology),
        *_cores(config, topology),
        *_minibatches(config),
        *_reduction(config, topology),
        *_roles(config),
    ]


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


def _minibatches(config: Config) -> Iterator[Fault]:
    parts, num_env, horizon = (
        config.algorithm.minibatches, config.env.num_env, config.algorithm.horizon,
    )  # fmt: skip
    rows = num_env * horizon
    if rows % parts:
        small = [n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0]
        divisors = [*small, *(rows // n for n in reversed(small))]
        below = max(n for n in divisors if n <= parts)
        above = next((n for n in divisors if n > parts), None)
        near = str(below) if above is None else f"{below} or {above}"
        yield Fault(
            "algorithm.minibatches", parts,
            f"must divide the {rows} samples of an update of one GMI (num_env={num_env} x "
            f"horizon={horizon})",
            f"Use {near}, or change num_env or horizon.",
        )  # fmt: skip


def _reduction(config: Config, topology: Topology) -> Iterator[Fault]:
    count = len(topology.devices) * config.layout.gmi_per_gpu
    if config.comm.reduction == "local" and count > 1:
        yield Fault(
            "comm.reduction", "local", f"there are {count} GMIs, which would drift apart",
            "Use mpr, or auto.",
        )  # fmt: skip


def _roles(config: Config) -> Iterator[Fault]:
    template = config.layout.template
    known = ROLES[template]
    for name, role in config.roles.items():
        where = f"roles.{name}"
        if name not in known:
            near = closest(name, known)
            yield Fault(
                where, role.class_, f"template {template} has the roles {', '.join(known)}",
                f"Did you mean {near}?" if near else "Use one of them.",
            )  # fmt: skip
        elif template == "tcg_ex" and name != "trainer":
            yield Fault(
                where, role.class_,
                "template tcg_ex plays all roles of a GMI with one class, named by its trainer",
                "Move it to roles.trainer.",
            )  # fmt: skip
