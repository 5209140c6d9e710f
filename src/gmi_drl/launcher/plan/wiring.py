"""Makes the links that join GMIs beside their group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from gmi_drl.comm.shm.board import create_board
from gmi_drl.comm.transports import LinkSpec, create_doorbell, create_link
from gmi_drl.gmi.backends.backend import backend_of
from gmi_drl.gmi.process import grouped
from gmi_drl.placement import Fault, GmiSpec, Layout
from gmi_drl.placement.faults import device_name, spec_fault
from gmi_drl.placement.templates import TEMPLATES
from gmi_drl.roles.role.job import Wires
from gmi_drl.runtime.wire.packing import MAX_FDS


def names_of(layout: Layout) -> list[str]:
    """Names the GMIs as errors call them, by gmi_id: "gmi 5, GPU 1", or with its host."""
    devices = [
        device_name(device) + f", host {device.host}" * (layout.hosts > 1)
        for device in layout.topology.devices
    ]
    return [f"gmi {gmi.gmi_id}, {devices[gmi.gpu_id]}" for gmi in layout.gmis]


def wires_of(
    layout: Layout,
    directory: Path,
    host: int = 0,
    between_hosts: Sequence[tuple[int, int, LinkSpec]] = (),
) -> Wires:
    """Makes the links and the board that a layout's template calls for on a host.

    `directory` is the run's private folder there. An agent and a trainer that may share the memory
    of a GPU are joined by it if the template lets them, all others by that of the host.
    `between_hosts` are links to and from GMIs of other hosts, which have been made.
    """
    template, names = TEMPLATES[layout.template], names_of(layout)
    pairs = [
        (source, target)
        for source, target in template.channels(layout)
        if layout.host_of(source.gmi_id) == layout.host_of(target.gmi_id) == host
    ]
    doorbells = {target.gmi_id: create_doorbell() for _, target in pairs}
    links = tuple(
        (
            source.gmi_id,
            target.gmi_id,
            create_link(
                names[source.gmi_id],
                names[target.gmi_id],
                directory=directory,
                gpu=template.gpu_links and _share_memory(layout, source, target),
                doorbell=doorbells[target.gmi_id],
            ),
        )
        for source, target in pairs
    )
    links = (*links, *between_hosts)
    if not links or not template.publishes_policy:
        return Wires(links)
    trainers = layout.holding("trainer")
    on_host = (gmi for gmi in trainers if layout.host_of(gmi.gmi_id) == host)
    publisher = next(on_host, trainers[0])
    return Wires(links, create_board(names[publisher.gmi_id]))


def wires_fault(layout: Layout, *, of_several_hosts: bool = False) -> Fault | None:
    """Tells why a process cannot be given all links of its GMIs; None if each can.

    They are sent in one call, which carries MAX_FDS descriptors: one for each link, one for the
    doorbell of each GMI that receives by them, and those of the run's tally, group and board. One
    of several hosts has a group for a single trainer, too.
    """
    process = {
        spec.gmi_id: specs[0].gmi_id
        for specs in grouped(layout, range(len(layout.gmis)))
        for spec in specs
    }
    links: Counter[int] = Counter()
    doorbells: defaultdict[int, set[int]] = defaultdict(set)
    template = TEMPLATES[layout.template]
    for source, target in template.channels(layout):
        for first_id in {process[source.gmi_id], process[target.gmi_id]}:
            links[first_id] += 1
            doorbells[first_id].add(target.gmi_id)
    trainers = len(layout.holding("trainer"))
    has_group = trainers > 1 or (of_several_hosts and trainers > 0)
    shared_descriptors = 1 + has_group + template.publishes_policy
    for first_id, link_count in links.items():
        descriptors = link_count + len(doorbells[first_id]) + shared_descriptors
        if descriptors > MAX_FDS:
            return spec_fault(
                layout.gmi(first_id), "links", link_count,
                f"with their doorbells these are {descriptors} descriptors, and a process is "
                f"given at most {MAX_FDS}",
                template.fewer_links,
            )  # fmt: skip
    return None


def _share_memory(layout: Layout, source: GmiSpec, target: GmiSpec) -> bool:
    """Tells whether two GMIs can map each other's memory of a GPU by CUDA IPC.

    Not from one MIG instance to another, and not inside one process, where a backend runs GMIs as
    threads.
    """
    device = layout.topology.devices[source.gpu_id]
    same_slice = source.gpu_id == target.gpu_id and source.mig == target.mig
    return same_slice and device.kind == "gpu" and not backend_of(source.backend).gmis_are_threads
