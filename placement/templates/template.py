"""Defines what a template is: which roles share a GMI, and how GMIs share the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gmi_drl.placement.costs import CostEquation
from gmi_drl.placement.faults import Fault, spec_fault
from gmi_drl.placement.layout import GmiSpec, Layout, LayoutError
from gmi_drl.placement.slicing import core_share
from gmi_drl.placement.topology import Topology

Roles = tuple[str, ...]
Channel = tuple[GmiSpec, GmiSpec]  # source, target

SERVING: Final[Roles] = ("simulator", "agent")
ALL: Final[Roles] = ("simulator", "agent", "trainer")
TRAINER: Final[Roles] = ("trainer",)


@dataclass(frozen=True)
class Shape:
    """Holds the numbers by which a template fills the devices."""

    topology: Topology
    gmi_per_gpu: int
    trainer_gpus: int = 1  # of template decoupled; 0: none of this host trains
    others_sample: bool = False  # other hosts do, so that all devices of this one may train

    @property
    def devices(self) -> int:
        """Returns the number of devices."""
        return len(self.topology.devices)


@dataclass(frozen=True)
class Template:
    """Places roles on GMIs, and GMIs on devices."""

    name: str
    mode: Literal["sync", "async", "serving"]
    description: str  # for docs/configuration.md
    gmis: tuple[Roles, ...]  # the kinds of GMIs, by the roles that each holds
    classes: Mapping[str, str]  # the class that runs a GMI, by the last of its roles
    roles_at: Callable[[Shape, int, int], Roles]  # of the GMI at (device, place on it)
    cost: CostEquation | None = None  # None: the papers have no row for it
    shape_faults: Callable[[Shape], Iterable[Fault]] = lambda shape: ()
    peer_faults: Callable[[Layout, int], Iterable[Fault]] = lambda layout, num_env: ()
    channels: Callable[[Layout], list[Channel]] = lambda layout: []  # not the reduction's
    carries: str = ""  # what the channels carry
    channels_answer: bool = True  # the targets send back; the first half of the channels asks
    gpu_links: bool = True  # channels may lie in the memory of a GPU
    publishes_policy: bool = False  # agents read policies from a board
    least_gmis: int = 1  # on a device
    fewer_links: str = "Use fewer GMIs."  # the remedy where a GMI has too many channels

    @property
    def class_roles(self) -> Sequence[str]:
        """Returns the roles by which a config names the classes of GMIs, one for each kind."""
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
        *,
        others_sample: bool = False,
    ) -> Layout:
        """Returns the layout on these devices; LayoutError where the template has none.

        A device's cores are split evenly between its GMIs. On a group of cores no two GMIs share
        one (LayoutError if there are too few); beside a GPU they do when they must.
        """
        shape = Shape(topology, gmi_per_gpu, trainer_gpus, others_sample)
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

    def missing_roles(self, layout: Layout) -> Iterator[Fault]:
        """Yields a fault if no GMI of the layout holds an agent, and if none holds a trainer."""
        gmi = layout.gmis[0]
        for role in ("agent", "trainer"):
            if not layout.holding(role):
                kind = next(kind for kind in self.gmis if role in kind)
                yield spec_fault(
                    gmi, "roles", list(gmi.roles),
                    f"it has no peer: no GMI of the layout holds a {role}",
                    f"Add one with {', '.join(kind)}.",
                )  # fmt: skip


def in_both_directions(there: list[Channel]) -> list[Channel]:
    """Returns the channels, and then the same ones in the other direction."""
    return [*there, *((target, source) for source, target in there)]
