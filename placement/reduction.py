"""Which gradient reduction a layout calls for, and why (Algorithm 1 of the GMI-DRL paper)."""

from __future__ import annotations

from typing import Literal

from .layout import Layout

Reduction = Literal["mpr", "local"]


def choose_reduction(wanted: str, layout: Layout) -> tuple[Reduction, str]:
    """The reduction `comm.reduction: wanted` means for a layout, and the reason in words.

    The paper's MRR and HAR, for more than one GPU, are not in this version: MPR serves there too.
    """
    count = len(layout.gmis)
    if count == 1:
        return "local", "there is one GMI, so there is nothing to reduce"
    if wanted == "mpr":
        return "mpr", "the config asks for it"
    devices = sum(bool(gmis) for gmis in layout.mpl)
    where = "one device" if devices == 1 else f"{devices} devices"
    return "mpr", f"{count} GMIs on {where} of one machine reduce through shared memory"
