"""Every reason a config cannot run on the devices there are, as a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gmi_drl.placement.config.config import Config
from gmi_drl.placement.config.resolve import simplest
from gmi_drl.placement.counted import counted
from gmi_drl.placement.faults import ABSENT, ConfigError, Fault, closest
from gmi_drl.placement.layout import Layout, LayoutError
from gmi_drl.placement.reduction import reducing, shape_fault
from gmi_drl.placement.templates.templates import (
    GMIS,
    OF_MODE,
    backend_of,
    layout_of,
    naming_roles,
    num_trainers,
    template_of,
)
from gmi_drl.placement.topology import Topology

from .gmis import gmi_faults
from .layout import layout_faults
from .learning import learning_faults


def check(config: Config, topology: Topology) -> list[Fault]:
    """All faults of the placement; empty when the config can run.

    `topology` is what `discover` found for the config's hardware section. Where the config says
    `auto`, the simplest that it can become is looked at.
    """
    config = simplest(config)
    found, layout = [*_devices(config, topology)], None
    if config.layout.file is None:
        found += [*_sides(config, topology), *_cores(config, topology)]
    if not found:
        try:
            layout = layout_of(config, topology)
        except ConfigError as error:  # of the layout's file
            found += [fault for fault in error.faults if isinstance(fault, Fault)]
        except LayoutError as error:
            found.append(Fault("layout", ABSENT, *_split(str(error))))
    if layout is not None:
        found += [*_of_the_mode(config, layout), *layout_faults_of(config, layout)]
    return [
        *_template(config),
        *found,
        *learning_faults(config, *_sizes(config, topology, layout)),
        *_reduction(config, _reducing(config, topology, layout)),
        *_roles(config, layout),
    ]


def layout_faults_of(config: Config, layout: Layout) -> list[Fault]:
    """Lists the faults of a layout file, which may have been edited or damaged meanwhile."""
    return [
        *layout_faults(layout, config.hardware),
        *gmi_faults(layout, config.env.num_env),
    ]


def _split(text: str) -> tuple[str, str]:
    """An error's text as the rule and the remedy."""
    rule, dot, remedy = text.partition(". ")
    return (rule, remedy) if dot else (text, "")


def _template(config: Config) -> Iterator[Fault]:
    if config.layout.file is None:
        yield from _foreign(template_of(config), config, ", leave it out,")
    if config.run.policy is not None and config.mode != "serving":
        yield Fault(
            "run.policy", config.run.policy, f"it is served, and the mode is {config.mode}",
            "Set mode: serving; to train on, use gmi-drl launch --resume.",
        )  # fmt: skip


def _of_the_mode(config: Config, layout: Layout) -> Iterator[Fault]:
    if config.layout.file is not None:
        yield from _foreign(layout.template, config, " in the layout's file,")


def _foreign(template: str, config: Config, otherwise: str) -> Iterator[Fault]:
    fitting = OF_MODE[config.mode]
    if template not in fitting:
        home = next(mode for mode, its in OF_MODE.items() if template in its)
        yield Fault(
            "layout.template", template, f"it is of mode {home}, and the mode is {config.mode}",
            f"Use {' or '.join(fitting)}{otherwise} or set mode: {home}.",
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
            "layout.trainer_gpus", trainers, f"of {counted(found, 'device')} one or more must be "
            "left for simulation",
            f"Use {found - 1} or fewer.",
        )  # fmt: skip
    if template == "tdg" and per_gpu % 2:
        yield Fault(
            "layout.gmi_per_gpu", per_gpu, "template tdg pairs a simulator GMI with an agent GMI "
            "of the same device",
            f"Use {per_gpu + 1}, or template tcg.",
        )  # fmt: skip
    if template == "tdg_ex" and per_gpu < 2:
        yield Fault(
            "layout.gmi_per_gpu", per_gpu, "template tdg_ex has a trainer GMI on each device, and "
            "one or more that collect for it",
            "Use 2 or more, or template tcg_ex.",
        )  # fmt: skip


def _devices(config: Config, topology: Topology) -> Iterator[Fault]:
    wanted, found = config.hardware.num_gpus, len(topology.devices)
    if not found:
        yield Fault("hardware", 0, "no device was found", "Use backend cpu, or auto.")
    elif wanted is not None and wanted > found:
        yield Fault(
            "hardware.num_gpus", wanted, f"the machine has {counted(found, 'device')}",
            f"Use {found} or fewer, or leave it out for all.",
        )  # fmt: skip
    backend = config.hardware.backend
    kinds = {device.kind for device in topology.devices}
    if backend not in ("auto", "cpu") and "cpu" in kinds:
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
            "hardware.num_gpus", len(groups),
            f"the machine has {counted(total, 'core')}, and each group needs one",
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


def _reduction(config: Config, mpl: Sequence[Sequence[int]]) -> Iterator[Fault]:
    """What the layout's shape allows; of the hardware `gmi_drl.comm.plan.capability` says it."""
    wanted = config.comm.reduction
    if wanted == "auto" or sum(map(len, mpl)) < 2:  # one GMI is local, whatever is asked for
        return
    if found := shape_fault(wanted, mpl):
        yield Fault("comm.reduction", wanted, *found)


def _sizes(config: Config, topology: Topology, layout: Layout | None) -> tuple[int, int]:
    """GMIs that hold an agent, and a trainer; of a template, as far as it can be counted."""
    if layout is not None:
        return len(layout.holding("agent")), len(layout.holding("trainer"))
    if config.layout.file is not None:
        return 0, 0
    gmis = len(topology.devices) * config.layout.gmi_per_gpu
    trainers = num_trainers(config, topology)
    kinds = GMIS[template_of(config)]
    if all("agent" in roles for roles in kinds):
        return gmis, trainers
    return gmis - trainers if trainers else gmis // len(kinds), trainers


def _reducing(config: Config, topology: Topology, layout: Layout | None) -> Sequence[Sequence[int]]:
    """MPL of the trainers; of a template, as far as it can be counted."""
    if layout is not None:
        return reducing(layout)
    trainers, devices = _sizes(config, topology, layout)[1], len(topology.devices)
    if template_of(config) == "decoupled":
        devices = min(devices, config.layout.trainer_gpus)
    return [range(trainers // devices)] * devices if trainers else []


def _roles(config: Config, layout: Layout | None) -> Iterator[Fault]:
    if config.layout.file is not None and layout is None:
        return
    template = template_of(config) if layout is None else layout.template
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
