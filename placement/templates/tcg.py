"""Places simulator and agent together in each GMI, and no trainer (GMI-DRL, section 5)."""

from __future__ import annotations

from typing import Final

from gmi_drl.placement.costs import CostEquation

from .template import SERVING, Template

tcg: Final = Template(
    name="tcg",
    mode="serving",
    description="simulator and agent together in each GMI",
    gmis=(SERVING,),
    classes={"agent": "gmi_drl.roles:Serving"},
    roles_at=lambda shape, device, place: SERVING,
    cost=CostEquation(resource=lambda w: max(w.rs, w.ra), com_bytes=lambda w, n: 0.0, trains=False),
)
