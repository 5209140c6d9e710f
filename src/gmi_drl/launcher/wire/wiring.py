"""Chooses the class of each GMI, and makes the links that join GMIs beside their group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gmi_drl.comm.shm.board import create_board
from gmi_drl.comm.shm.tally import TallySpec, create_tally
from gmi_drl.comm.transports import create_bell, create_link
from gmi_drl.gmi.backends.backend import backend_of
from gmi_drl.gmi.process import grouped
from gmi_drl.placement import Config, Fault, GmiSpec, Layout
from gmi_drl.placement.checks.spec_faults import place, spec_fault
from gmi_drl.placement.templates.channels import channels
from gmi_drl.placement.templates.templates import naming_roles
from gmi_drl.roles.role.host import COUNTERS
from gmi_drl.roles.role.wires import Wires
from gmi_drl.runtime.wire.packing import MAX_FDS

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

Classes = dict[str, "type[DRL_role] | str"]

# By template: what runs a GMI whose last role is the key.
_OURS: Final[dict[str, dict[str, str]]] = {
    "tcg_ex": {"trainer": "gmi_drl.roles:Holistic"},
    "tdg_ex": {"agent": "gmi_drl.roles:SyncAgent", "trainer": "gmi_drl.roles:SyncTrainer"},
    "decoupled": {"agent": "gmi_drl.roles:AsyncAgent", "trainer": "gmi_drl.roles:AsyncTrainer"},
    "tcg": {"agent": "gmi_drl.roles:Serving"},
    "tdg": {"simulator": "gmi_drl.roles:ServingSimulator", "agent": "gmi_drl.roles:ServingAgent"},
}
OUR_CLASSES: Final = frozenset(name for classes in _OURS.values() for name in classes.values())


def classes_of(
    config: Config, layout: Layout, roles: Mapping[str, type[DRL_role]] | None
) -> Classes:
    """Names the class of each kind of GMI, by its last role: `roles`, the config, then ours.

    ValueError for a role by which the template names no class, RoleLoadError for no DRL_role.
    """
    template = layout.template
    naming = naming_roles(template)
    if unknown := sorted(set(roles or {}) - set(naming)):
        wanted = ", ".join(f"'{name}': YourRole" for name in naming)
        raise ValueError(
            f"roles={unknown}: template {template} runs one class a GMI, named by its "
            f"{' or '.join(naming)}. Pass roles={{{wanted}}}."
        )
    classes: Classes = dict(_OURS[template])
    classes |= {name: config.roles[name].class_ for name in naming if name in config.roles}
    if roles:
        from gmi_drl.roles.role.role import check_role  # torch, which a role's class has imported

        classes |= {name: check_role(role, repr(role)) for name, role in roles.items()}
    return classes


def tally_of(layout: Layout) -> TallySpec:
    """Makes fresh counters for all GMIs of a layout."""
    return create_tally(len(layout.gmis), COUNTERS)


def names_of(layout: Layout) -> list[str]:
    """Names the GMIs as errors call them, by gmi_id: "gmi 5, GPU 1"."""
    devices = [place(device) for device in layout.topology.devices]
    return [f"gmi {gmi.gmi_id}, {devices[gmi.gpu_id]}" for gmi in layout.gmis]


def wires_of(layout: Layout, directory: Path) -> Wires:
    """Makes the links and the board that a layout's template calls for.

    `directory` is the run's private folder. An agent and a trainer that may share the memory of a
    GPU are joined by it, all others by that of the host: what the two of a `tdg` pair ask each
    other may not go with a process that dies.
    """
    names, pairs = names_of(layout), channels(layout)
    if not pairs:
        return Wires()
    bells = {target.gmi_id: create_bell() for _, target in pairs}
    links = tuple(
        (
            source.gmi_id,
            target.gmi_id,
            create_link(
                names[source.gmi_id],
                names[target.gmi_id],
                directory=directory,
                gpu=layout.template != "tdg" and _share_memory(layout, source, target),
                bell=bells[target.gmi_id],
            ),
        )
        for source, target in pairs
    )
    trainers = layout.holding("trainer")
    return Wires(links, create_board(names[trainers[0].gmi_id]) if _publishes(layout) else None)


def wires_fault(layout: Layout) -> Fault | None:
    """Tells why a process cannot be given all links of its GMIs; None if each can.

    It is told in one call, which carries MAX_FDS descriptors: one for each link, one for the bell
    of each GMI that receives by them, and those of the run's tally, group and board.
    """
    process = {
        spec.gmi_id: specs[0].gmi_id
        for specs in grouped(layout, range(len(layout.gmis)))
        for spec in specs
    }
    links: Counter[int] = Counter()
    bells: defaultdict[int, set[int]] = defaultdict(set)
    for source, target in channels(layout):
        for first_id in {process[source.gmi_id], process[target.gmi_id]}:
            links[first_id] += 1
            bells[first_id].add(target.gmi_id)
    common = 1 + (len(layout.holding("trainer")) > 1) + _publishes(layout)
    for first_id, number in links.items():
        wanted = number + len(bells[first_id]) + common
        if wanted > MAX_FDS:
            return spec_fault(
                layout.gmi(first_id), "links", number,
                f"with the bells at their ends these are {wanted} descriptors, and a process is "
                f"given at most {MAX_FDS}",
                "Use fewer GMIs" + (", or give its device more trainers."
                                    if layout.template == "tdg_ex" else "."),
            )  # fmt: skip
    return None


def _publishes(layout: Layout) -> bool:
    """Whether agents read policies from a board; in tdg_ex a policy comes with an order."""
    return layout.template == "decoupled"


def _share_memory(layout: Layout, one: GmiSpec, other: GmiSpec) -> bool:
    """Whether two GMIs can map each other's memory of a GPU by CUDA IPC.

    Not from one MIG instance to another, and not inside one process, where a backend runs GMIs as
    threads.
    """
    device = layout.topology.devices[one.gpu_id]
    together = one.gpu_id == other.gpu_id and one.mig == other.mig
    return together and device.kind == "gpu" and not backend_of(one.backend).THREADS
