"""Places a GMI with a piece of the parameters on each device, the last of its `gmi_per_gpu`.

The others simulate and infer, each with the whole policy: they fetch the pieces of all devices, and
bring each its piece of a gradient (Li et al., 2014; RLlib's paper, figure 5a).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gmi_drl.placement.faults import Fault
from gmi_drl.placement.layout import Layout

from .template import SERVING, TRAINER, Channel, Shape, Template, in_both_directions


def _shape_faults(shape: Shape) -> Iterator[Fault]:
    if shape.gmi_per_gpu < 2:
        yield Fault(
            "layout.gmi_per_gpu", shape.gmi_per_gpu, "template parameter_server has a GMI on each "
            "device that holds parameters, and one or more that send gradients",
            "Use 2 or more.",
        )  # fmt: skip


def _channels(layout: Layout) -> list[Channel]:
    """Returns channels from trainers to agents for parameters, and back for gradients."""
    trainers, agents = layout.holding("trainer"), layout.holding("agent")
    return in_both_directions([(trainer, agent) for trainer in trainers for agent in agents])


parameter_server: Final[Template] = Template(
    name="parameter_server",
    mode="sync",
    description="one GMI of each device holds a piece of the parameters, and the others send "
    "gradients",
    gmis=(SERVING, TRAINER),
    classes={"agent": "gmi_drl.roles:Agent", "trainer": "gmi_drl.roles:Trainer"},
    roles_at=lambda shape, _, place: TRAINER if place == shape.gmi_per_gpu - 1 else SERVING,
    shape_faults=_shape_faults,
    peer_faults=lambda layout, num_env: parameter_server.missing_roles(layout),
    channels=_channels,
    carries="parameters, gradients back",
    least_gmis=2,
)
