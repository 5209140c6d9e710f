"""Places a trainer GMI on each device, the last of its `gmi_per_gpu`.

The others of the device simulate and infer for it, and wait while it trains (GMI-DRL's TDG_EX,
which it compares TCG_EX against).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gmi_drl.placement.costs import CostEquation, Workload
from gmi_drl.placement.faults import Fault, device_name, spec_fault
from gmi_drl.placement.layout import Layout

from .template import SERVING, TRAINER, Channel, Shape, Template, in_both_directions


def rollout_workers_of(layout: Layout) -> dict[int, list[int]]:
    """Returns the agents that collect for each trainer, by gmi_id.

    An agent's trainer is on its device; several trainers of a device take turns. Then agents of
    devices without one go to the trainers that have fewest, wherever they stand in the layout.
    """
    trainers = [gmi.gmi_id for gmi in layout.holding("trainer")]
    trainers_near = {
        gmi.gmi_id: [trainer for trainer in trainers if layout.gmi(trainer).gpu_id == gmi.gpu_id]
        for gmi in layout.gmis
        if gmi.gmi_id not in trainers
    }
    workers: dict[int, list[int]] = {trainer: [] for trainer in trainers}
    for agent in sorted(trainers_near, key=lambda agent: not trainers_near[agent]):
        idlest = min(trainers_near[agent] or trainers, key=lambda trainer: len(workers[trainer]))
        workers[idlest].append(agent)
    return {trainer: sorted(agents) for trainer, agents in workers.items()}


def _resource(w: Workload) -> float:
    busy = w.ts_s * w.rs + w.ta_s * w.alpha * w.ra + w.tt_s * w.beta * w.rt
    return busy / (w.ts_s + w.ta_s + w.tt_s)


def _com_bytes(w: Workload, n: int) -> float:
    steps = w.m * (w.state_bytes + w.action_bytes + w.reward_bytes)
    return steps + w.policy_bytes + w.reduced_bytes(n)


def _tdg_ex_shape_faults(shape: Shape) -> Iterator[Fault]:
    if shape.gmi_per_gpu < 2:
        yield Fault(
            "layout.gmi_per_gpu", shape.gmi_per_gpu, "template tdg_ex has a trainer GMI on each "
            "device, and one or more that collect for it",
            "Use 2 or more, or template tcg_ex.",
        )  # fmt: skip


def _tdg_ex_peer_faults(layout: Layout, num_env: int) -> Iterator[Fault]:
    """Yields a fault for each trainer without agents, or with more or fewer than the first."""
    if missing := next(tdg_ex.missing_roles(layout), None):
        yield missing
        return
    workers = rollout_workers_of(layout)
    first, count = next((trainer, len(agents)) for trainer, agents in workers.items())
    for trainer, agents in workers.items():
        gmi = layout.gmi(trainer)
        if not agents:
            yield spec_fault(
                gmi, "roles", list(gmi.roles), "it has no peer: no GMI of "
                f"{device_name(layout.topology.devices[gmi.gpu_id])} is left to collect for it",
                "Add one with simulator, agent there, or use template tcg_ex.",
            )  # fmt: skip
        elif len(agents) != count:
            yield spec_fault(
                gmi, "roles", ["trainer"],
                f"{len(agents)} GMIs collect for it and {count} for GMI {first}, and gradients "
                "are averaged as if all were of as many samples",
                "Give every trainer as many.",
            )  # fmt: skip


def _tdg_ex_channels(layout: Layout) -> list[Channel]:
    """Returns channels from trainers to their agents for orders and the policy, and back."""
    return in_both_directions(
        [
            (layout.gmi(trainer), layout.gmi(agent))
            for trainer, agents in rollout_workers_of(layout).items()
            for agent in agents
        ]
    )


tdg_ex: Final = Template(
    name="tdg_ex",
    mode="sync",
    description="one GMI of each device trains, and the others simulate and infer for it",
    gmis=(SERVING, TRAINER),
    classes={"agent": "gmi_drl.roles:Agent", "trainer": "gmi_drl.roles:Trainer"},
    roles_at=lambda shape, _, place: TRAINER if place == shape.gmi_per_gpu - 1 else SERVING,
    cost=CostEquation(
        resource=_resource,
        com_bytes=_com_bytes,
        trains=True,
        measured_com_s=lambda w: w.tdg_ex_com_s,
    ),
    shape_faults=_tdg_ex_shape_faults,
    peer_faults=_tdg_ex_peer_faults,
    channels=_tdg_ex_channels,
    carries="policy, experience back",
    least_gmis=2,
    fewer_links="Use fewer GMIs, or give its device more trainers.",
)
