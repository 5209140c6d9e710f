"""Places simulator and agent together on some devices, trainers on the last `trainer_gpus`.

Each side has whole devices, so that training takes nothing from simulation (GMI-DRL's asynchronous
training).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gmi_drl.placement.faults import Fault, counted
from gmi_drl.placement.layout import Layout

from .template import SERVING, TRAINER, Channel, Roles, Shape, Template


def _roles_at(shape: Shape, device: int, place: int) -> Roles:
    return TRAINER if device >= shape.devices - shape.trainer_gpus else SERVING


def _shape_faults(shape: Shape) -> Iterator[Fault]:
    most = shape.devices if shape.others_sample else shape.devices - 1
    if shape.trainer_gpus <= most or not shape.devices:
        return
    if shape.others_sample:
        yield Fault(
            "layout.trainer_gpus", shape.trainer_gpus,
            f"a host that trains has {counted(shape.devices, 'device')}",
            f"Use {most} or fewer.",
        )  # fmt: skip
    elif shape.devices == 1:
        on_cores = all(device.kind == "cpu" for device in shape.topology.devices)
        yield Fault(
            "layout.template", "decoupled", "simulation and training need a device each, and there "
            "is one",
            "Set hardware.num_gpus: 2, which makes two groups of the cores." if on_cores
            else "Use mode: sync, which shares a GPU, or more GPUs.",
        )  # fmt: skip
    else:
        yield Fault(
            "layout.trainer_gpus", shape.trainer_gpus,
            f"of {counted(shape.devices, 'device')} one or more must be left for simulation",
            f"Use {most} or fewer.",
        )  # fmt: skip


def _channels(layout: Layout) -> list[Channel]:
    """Returns a channel for experience from every agent to every trainer of its host.

    Agents of hosts without trainers have one to every trainer of all hosts.
    """
    hosts = [layout.host_of(gmi.gmi_id) for gmi in layout.gmis]
    agents, trainers = layout.holding("agent"), layout.holding("trainer")
    training_hosts = {hosts[trainer.gmi_id] for trainer in trainers}
    return [
        (agent, trainer)
        for trainer in trainers
        for agent in agents
        if hosts[agent.gmi_id] == hosts[trainer.gmi_id] or hosts[agent.gmi_id] not in training_hosts
    ]


decoupled: Final[Template] = Template(
    name="decoupled",
    mode="async",
    description="simulator and agent together on some devices, trainers on the others",
    gmis=(SERVING, TRAINER),
    classes={"agent": "gmi_drl.roles:Agent", "trainer": "gmi_drl.roles:Trainer"},
    roles_at=_roles_at,
    shape_faults=_shape_faults,
    peer_faults=lambda layout, num_env: decoupled.missing_roles(layout),
    channels=_channels,
    carries="experience",
    channels_answer=False,  # the policy comes back by a board
    publishes_policy=True,
)
