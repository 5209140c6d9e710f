"""Places simulator, agent and trainer together in each of `gmi_per_gpu` GMIs on every device.

Co-located roles hand experience over without a transfer; only gradients leave a GMI (GMI-DRL,
section 5).
"""

from __future__ import annotations

from typing import Final

from gmi_drl.placement.costs import CostEquation

from .template import ALL, Template

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
