"""Places simulators and agents in GMIs of their own, which GMI-DRL compares TCG against.

`gmi_per_gpu` is even. GMIs 2 k and 2 k + 1 lie on one device and are a pair: the simulator, and
the agent that acts for its environments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gmi_drl.placement.costs import CostEquation
from gmi_drl.placement.faults import Fault, device_name, spec_fault
from gmi_drl.placement.layout import Layout

from .template import Channel, Shape, Template, in_both_directions

_PAIR: Final = (("simulator",), ("agent",))


def _shape_faults(shape: Shape) -> Iterator[Fault]:
    per_gpu = shape.gmi_per_gpu
    if per_gpu % 2:
        yield Fault(
            "layout.gmi_per_gpu", per_gpu, "template tdg pairs a simulator GMI with an agent GMI "
            "of the same device",
            f"Use {per_gpu + 1}, or template tcg.",
        )  # fmt: skip


def _peer_faults(layout: Layout, num_env: int) -> Iterator[Fault]:
    if num_env < 2:
        yield Fault(
            "env.num_env", num_env, "template tdg simulates one half of a GMI's environments while "
            "the other half is acted for",
            "Use 2 or more, or template tcg.",
        )  # fmt: skip
    gmis = layout.gmis
    if len(gmis) % 2:
        yield spec_fault(
            gmis[-1], "roles", list(gmis[-1].roles), "template tdg pairs GMIs 0 and 1, 2 and 3, "
            "and so on, and it is left over",
            "Give it a peer, or use template tcg.",
        )  # fmt: skip
    for simulator, agent in zip(gmis[::2], gmis[1::2], strict=False):
        pair = f"GMIs {simulator.gmi_id} and {agent.gmi_id} are a pair of template tdg"
        if (simulator.roles, agent.roles) != _PAIR:
            yield spec_fault(
                agent, "roles", list(agent.roles), f"{pair}, a simulator and its agent",
                "Write the simulator first, and its agent after it.",
            )  # fmt: skip
        elif simulator.gpu_id != agent.gpu_id:
            device = layout.topology.devices[simulator.gpu_id]
            yield spec_fault(
                agent, "gpu", agent.gpu_id,
                f"{pair}, and the simulator is on {device_name(device)}",
                f"Use {simulator.gpu_id}.",
            )  # fmt: skip


def _channels(layout: Layout) -> list[Channel]:
    """Returns channels to the agent of each pair for observations, and back for actions."""
    return in_both_directions(list(zip(layout.gmis[::2], layout.gmis[1::2], strict=True)))


tdg: Final = Template(
    name="tdg",
    mode="serving",
    description="simulators and agents in GMIs of their own, in pairs",
    gmis=_PAIR,
    classes={"simulator": "gmi_drl.roles:ServingSimulator", "agent": "gmi_drl.roles:ServingAgent"},
    roles_at=lambda shape, device, place: _PAIR[place % 2],
    cost=CostEquation(
        resource=lambda w: (w.ts_s * w.rs + w.ta_s * w.alpha * w.ra) / (w.ts_s + w.ta_s),
        com_bytes=lambda w, n: 2 * w.state_bytes + w.action_bytes + w.reward_bytes,
        trains=False,
        measured_com_s=lambda w: w.tdg_com_s,
    ),
    shape_faults=_shape_faults,
    peer_faults=_peer_faults,
    channels=_channels,
    carries="observations, actions back",
    gpu_links=False,  # requests and answers must outlive a process that dies
    least_gmis=2,
)
