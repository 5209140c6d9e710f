"""Defines template tcg: serving with simulator and agent together in each GMI."""

from __future__ import annotations

from typing import Final

from gmi_drl.placement.costs import CostEquation
from gmi_drl.placement.layout import Layout
from gmi_drl.placement.topology import Topology

from .template import SERVING, Shape, Template


def tcg(topology: Topology, gmi_per_gpu: int, num_env: int, backend: str = "cpu") -> Layout:
    """Places simulator and agent together in each GMI, and no trainer (GMI-DRL, section 5)."""
    return TCG.layout(Shape(topology, gmi_per_gpu), num_env, backend)


TCG: Final = Template(
    name="tcg",
    mode="serving",
    description="simulator and agent together in each GMI",
    gmis=(SERVING,),
    classes={"agent": "gmi_drl.roles:Serving"},
    roles_at=lambda shape, device, place: SERVING,
    cost=CostEquation(
        resource=lambda w: max(w.rs, w.ra),
        com_bytes=lambda w, n: 0.0,
        trains=False,
    ),
)
