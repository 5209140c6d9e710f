"""Decides which GMIs reduce together, and by which strategy as Algorithm 1 of GMI-DRL has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from .faults import counted
from .layout import Layout

Strategy: TypeAlias = Literal["local", "mpr", "mrr", "har", "ipc"]
MPL: TypeAlias = Sequence[Sequence[int]]  # GMI ids by device, as the paper writes a layout

# Of two with the same projected time the earlier one, which is simpler, is taken.
STRATEGIES: Final[tuple[Strategy, ...]] = ("local", "mpr", "mrr", "har", "ipc")


def algorithm_1(mpl: MPL) -> Literal["mpr", "mrr", "har"]:
    """Returns the paper's choice for a layout (GMI-DRL, Algorithm 1), to the letter.

    It knows neither the hardware nor the size of a gradient. `mpl` has the devices that hold GMIs
    of the group and no others.
    """
    return algorithm_1_with_reason(mpl)[0]


def algorithm_1_with_reason(mpl: MPL) -> tuple[Literal["mpr", "mrr", "har"], str]:
    """Returns the choice of Algorithm 1, and the reason in words."""
    sizes = [len(gmis) for gmis in mpl]
    if len(mpl) <= 1:
        return "mpr", "all GMIs are on one device"
    if len(set(sizes)) > 1:
        return "har", f"devices have different numbers of GMIs ({', '.join(map(str, sizes))})"
    per_device = f"{counted(sizes[0], 'GMI')} on each of {len(mpl)} devices"
    if sizes[0] > len(mpl):
        return "har", f"{per_device}, more than there are devices"
    return "mrr", f"{per_device}, no more than there are devices"


def reducing(layout: Layout) -> list[list[int]]:
    """Returns MPL of the GMIs that train; devices without one are left out.

    Empty when nobody trains (mode serving).
    """
    return [gmis for gmis in layout.mpl_of("trainer") if gmis]


def shape_fault(strategy: Strategy, mpl: MPL) -> tuple[str, str] | None:
    """Returns the rule that a layout breaks for a strategy, and the remedy; None if it fits.

    `mpl` as for `algorithm_1`. What the hardware has to say is in `gmi_drl.comm.plan.capability`.
    """
    sizes = [len(gmis) for gmis in mpl]
    count, devices = sum(sizes), len(sizes)
    if strategy == "local":
        fault = (f"there are {count} GMIs, which would drift apart", "Use mpr, or auto.")
        return fault if count > 1 else None
    if count < 2:
        return "there is one GMI, so there is nothing to reduce", "Use local, or auto."
    if strategy == "ipc" and devices > 1:
        return f"the GMIs are on {devices} devices, and ipc reduces on one GPU", "Use har, or auto."
    if strategy in ("mrr", "har") and devices == 1:
        return (
            "all GMIs are on one device, so there are no rings between devices",
            "Use mpr, or auto.",
        )
    if strategy == "mrr" and len(set(sizes)) > 1:
        return (
            f"devices have different numbers of GMIs ({', '.join(map(str, sizes))}), and each ring "
            "takes one GMI of every device",
            "Use har, or auto.",
        )
    if strategy == "mrr" and sizes[0] > devices:
        return (
            f"there are {sizes[0]} GMIs on each of {devices} devices, and the last ring takes one "
            "GMI of each ring, no two on one device",
            f"Use har, or auto, or layout.gmi_per_gpu: {devices}.",
        )
    return None
