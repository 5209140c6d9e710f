"""Defines the templates: which roles share a GMI, and how GMIs share the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from .costs import CostEquation, Workload
from .faults import Fault, counted, device_name, spec_fault
from .layout import GmiSpec, Layout, LayoutError
from .slicing import core_share
from .topology import Topology

Roles = tuple[str, ...]
Channel = tuple[GmiSpec, GmiSpec]  # source, target

SERVING: Final[Roles] = ("simulator", "agent")
ALL: Final[Roles] = ("simulator", "agent", "trainer")
TRAINER: Final[Roles] = ("trainer",)


@dataclass(frozen=True)
class Shape:
    """The numbers that a template fills the devices by."""

    topology: Topology
    gmi_per_gpu: int
    trainer_gpus: int = 1  # of template decoupled

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.topology.devices)


@dataclass(frozen=True)
class Template:
    """A way to place roles on GMIs, and GMIs on devices."""

    name: str
    mode: Literal["sync", "async", "serving"]
    description: str  # for docs/configuration.md
    gmis: tuple[Roles, ...]  # the kinds of GMIs, by the roles that each holds
    classes: Mapping[str, str]  # the class that runs a GMI, by the last of its roles
    roles_at: Callable[[Shape, int, int], Roles]  # of the GMI at (device, place on it)
    cost: CostEquation | None = None  # None: it is in no table of the papers
    shape_faults: Callable[[Shape], Iterable[Fault]] = lambda shape: ()
    peer_faults: Callable[[Layout, int], Iterable[Fault]] = lambda layout, num_env: ()
    channels: Callable[[Layout], list[Channel]] = lambda layout: []  # beside the reduction's
    carries: str = ""  # what the channels carry
    channels_answer: bool = True  # the targets send back; the first half of the channels asks
    gpu_links: bool = True  # channels may lie in the memory of a GPU
    publishes_policy: bool = False  # agents read policies from a board
    least_gmis: int = 1  # on a device
    fewer_links: str = "Use fewer GMIs."  # the remedy where a GMI has too many channels

    @property
    def class_roles(self) -> Sequence[str]:
        """The roles by which a config names the classes of GMIs, one for each kind."""
        return [roles[-1] for roles in self.gmis]

    @property
    def is_split(self) -> bool:
        """Tells whether its roles lie in different GMIs."""
        return len(self.gmis) > 1

    def planned(self, shape: Shape) -> list[list[Roles]]:
        """Returns the roles of each GMI, by device."""
        return [
            [self.roles_at(shape, device, place) for place in range(shape.gmi_per_gpu)]
            for device in range(shape.devices)
        ]

    def __call__(
        self,
        topology: Topology,
        gmi_per_gpu: int,
        num_env: int,
        backend: str = "cpu",
        trainer_gpus: int = 1,
    ) -> Layout:
        """Returns the layout on these devices; LayoutError where the template has none.

        A device's cores are split evenly between its GMIs. On a group of cores no two GMIs share
        one (LayoutError if there are too few); beside a GPU they do when they must.
        """
        shape = Shape(topology, gmi_per_gpu, trainer_gpus)
        for fault in self.shape_faults(shape):
            raise LayoutError(str(fault))
        gmis: list[GmiSpec] = []
        for device, kinds in zip(shape.topology.devices, self.planned(shape), strict=True):
            for place, roles in enumerate(kinds):
                gmis.append(
                    GmiSpec(
                        gmi_id=len(gmis),
                        gpu_id=device.index,
                        roles=roles,
                        backend=backend,
                        cores=core_share(device, shape.gmi_per_gpu, place),
                        num_env=num_env if "simulator" in roles else 0,
                        device_uuid=device.uuid,
                    )
                )
        return Layout(self.name, shape.topology, tuple(gmis))

    def missing_roles(self, layout: Layout, roles: Roles = ("agent", "trainer")) -> Iterator[Fault]:
        """Yields a fault for each of `roles` that no GMI of the layout holds."""
        first = layout.gmis[0]
        for role in roles:
            if not layout.holding(role):
                kind = next(kind for kind in self.gmis if role in kind)
                yield spec_fault(
                    first, "roles", list(first.roles),
                    f"it has no peer: no GMI of the layout holds a {role}",
                    f"Add one with {', '.join(kind)}.",
                )  # fmt: skip


def with_answers(there: list[Channel]) -> list[Channel]:
    """Returns the channels, and then the same ones in the other direction."""
    return [*there, *((target, source) for source, target in there)]


# Places simulator, agent and trainer together in each of `gmi_per_gpu` GMIs on every device.
# Co-located roles hand experience over without a transfer; only gradients leave a GMI (GMI-DRL,
# section 5).
tcg_ex: Final = Template(
    name="tcg_ex",
    mode="sync",
    description="simulator, agent and trainer together in each GMI",
    gmis=(ALL,),
    classes={"trainer": "gmi_drl.roles:Holistic"},
    roles_at=lambda shape, device, place: ALL,
    cost=CostEquation(
        resource=lambda w: max(w.rs, w.ra, w.rt),
        com_bytes=lambda w, n: w.reduced_bytes(n),
        trains=True,
    ),
)


def rollout_workers_of(layout: Layout) -> dict[int, list[int]]:
    """Returns the agents that collect for each trainer, by gmi_id.

    An agent's trainer is on its device; several trainers of a device take turns. Then agents of
    devices without one go to the trainers that have fewest, wherever they stand in the layout.
    """
    trainers = [gmi.gmi_id for gmi in layout.holding("trainer")]
    near = {
        gmi.gmi_id: [t for t in trainers if layout.gmi(t).gpu_id == gmi.gpu_id]
        for gmi in layout.gmis
        if gmi.gmi_id not in trainers
    }
    workers: dict[int, list[int]] = {trainer: [] for trainer in trainers}
    for agent in sorted(near, key=lambda agent: not near[agent]):
        fewest = min(near[agent] or trainers, key=lambda trainer: len(workers[trainer]))
        workers[fewest].append(agent)
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
    first, most = next((trainer, len(agents)) for trainer, agents in workers.items())
    for trainer, agents in workers.items():
        gmi = layout.gmi(trainer)
        if not agents:
            yield spec_fault(
                gmi, "roles", list(gmi.roles), "it has no peer: no GMI of "
                f"{device_name(layout.topology.devices[gmi.gpu_id])} is left to collect for it",
                "Add one with simulator, agent there, or use template tcg_ex.",
            )  # fmt: skip
        elif len(agents) != most:
            yield spec_fault(
                gmi, "roles", ["trainer"],
                f"{len(agents)} GMIs collect for it and {most} for GMI {first}, and gradients "
                "are averaged as if all were of as many samples",
                "Give every trainer as many.",
            )  # fmt: skip


def _tdg_ex_channels(layout: Layout) -> list[Channel]:
    """Returns one to each agent from its trainer, for orders and the policy, and one back."""
    return with_answers(
        [
            (layout.gmi(trainer), layout.gmi(agent))
            for trainer, agents in rollout_workers_of(layout).items()
            for agent in agents
        ]
    )


# Places a trainer GMI on each device, the last of its `gmi_per_gpu`. The others of the device
# simulate and infer for it, and wait while it trains (GMI-DRL's TDG_EX, which it compares TCG_EX
# against).
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


def _decoupled_roles_at(shape: Shape, device: int, place: int) -> Roles:
    return TRAINER if device >= shape.devices - shape.trainer_gpus else SERVING


def _decoupled_shape_faults(shape: Shape) -> Iterator[Fault]:
    if shape.devices == 1:
        on_cores = all(device.kind == "cpu" for device in shape.topology.devices)
        yield Fault(
            "layout.template", "decoupled", "simulation and training need a device each, and there "
            "is one",
            "Set hardware.num_gpus: 2, which makes two groups of the cores." if on_cores
            else "Use mode: sync, which shares a GPU, or more GPUs.",
        )  # fmt: skip
    elif 0 < shape.devices <= shape.trainer_gpus:
        yield Fault(
            "layout.trainer_gpus", shape.trainer_gpus,
            f"of {counted(shape.devices, 'device')} one or more must be left for simulation",
            f"Use {shape.devices - 1} or fewer.",
        )  # fmt: skip


def _decoupled_channels(layout: Layout) -> list[Channel]:
    """Returns one for experience from every agent to every trainer."""
    agents, trainers = layout.holding("agent"), layout.holding("trainer")
    return [(agent, trainer) for trainer in trainers for agent in agents]


# Places simulator and agent together on some devices, trainers on the last `trainer_gpus`. Each
# side has whole devices, so that training takes nothing from simulation (GMI-DRL's asynchronous
# training).
decoupled: Final[Template] = Template(
    name="decoupled",
    mode="async",
    description="simulator and agent together on some devices, trainers on the others",
    gmis=(SERVING, TRAINER),
    classes={"agent": "gmi_drl.roles:Agent", "trainer": "gmi_drl.roles:Trainer"},
    roles_at=_decoupled_roles_at,
    shape_faults=_decoupled_shape_faults,
    peer_faults=lambda layout, num_env: decoupled.missing_roles(layout),
    channels=_decoupled_channels,
    carries="experience",
    channels_answer=False,  # the policy comes back by a board
    publishes_policy=True,
)


# Places simulator and agent together in each GMI, and no trainer (GMI-DRL, section 5).
tcg: Final = Template(
    name="tcg",
    mode="serving",
    description="simulator and agent together in each GMI",
    gmis=(SERVING,),
    classes={"agent": "gmi_drl.roles:Serving"},
    roles_at=lambda shape, device, place: SERVING,
    cost=CostEquation(resource=lambda w: max(w.rs, w.ra), com_bytes=lambda w, n: 0.0, trains=False),
)


_PAIR: Final = (("simulator",), ("agent",))


def _tdg_shape_faults(shape: Shape) -> Iterator[Fault]:
    per_gpu = shape.gmi_per_gpu
    if per_gpu % 2:
        yield Fault(
            "layout.gmi_per_gpu", per_gpu, "template tdg pairs a simulator GMI with an agent GMI "
            "of the same device",
            f"Use {per_gpu + 1}, or template tcg.",
        )  # fmt: skip


def _tdg_peer_faults(layout: Layout, num_env: int) -> Iterator[Fault]:
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


def _tdg_channels(layout: Layout) -> list[Channel]:
    """Returns one to the agent of each pair, for observations, and one back, for actions."""
    return with_answers(list(zip(layout.gmis[::2], layout.gmis[1::2], strict=True)))


# Places simulators and agents in GMIs of their own, which GMI-DRL compares TCG against.
# `gmi_per_gpu` is even. GMIs 2 k and 2 k + 1 lie on one device and are a pair: the simulator, and
# the agent that acts for its environments.
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
    shape_faults=_tdg_shape_faults,
    peer_faults=_tdg_peer_faults,
    channels=_tdg_channels,
    carries="observations, actions back",
    gpu_links=False,  # what the two ask each other may not go with a process that dies
    least_gmis=2,
)


# Of a mode the first one is what `auto` means.
TEMPLATES: Final[dict[str, Template]] = {
    template.name: template for template in (tcg_ex, tdg_ex, decoupled, tcg, tdg)
}

if TYPE_CHECKING:
    TemplateName = str
else:
    TemplateName = Literal[tuple(TEMPLATES)]


def templates_of(mode: str) -> list[Template]:
    """Returns the templates that can run a mode, its own first."""
    return [template for template in TEMPLATES.values() if template.mode == mode]
