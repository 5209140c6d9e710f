"""Of which primitives each strategy consists, in which order: what the measured plan adds up.

    mpr   host(all)
    mrr   ring(one GMI of every device), t such rings at once
          ring(an endpoint of each of them)                       nothing more with t = 1
          ring_bcast(from the endpoints), t at once
    har   host(the GMIs of a device), g devices at once           nothing with one GMI a device
          ring(the leaders), whose result the others read in place
    ipc   ipc(all)
    local nothing

Inside a device har uses ipc in place of host where it can.
Each begins when the one before it is over on all ranks; where a strategy overlaps them it is faster
than projected. With devices of different sizes the largest one's time counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gmi_drl.comm.group.group import Wire
from gmi_drl.placement.layout import Layout
from gmi_drl.placement.reduction import MPL, Strategy

from .links import Link, LinkKey, LinkKind


@dataclass(frozen=True)
class ReductionStage:
    """One primitive, done by several groups of GMIs side by side."""

    kind: LinkKind
    groups: tuple[tuple[int, ...], ...]  # GMI ids; each group has two or more


def stages_of(
    strategy: Strategy, mpl: MPL, inside: LinkKind = "host"
) -> tuple[ReductionStage, ...]:
    """The stages of a strategy that `shape_fault` allows on `mpl`.

    `inside`: how the GMIs of one device reduce, host or ipc.
    """
    if strategy == "har":
        return _har(mpl, inside)
    return _STAGES[strategy](mpl)


def key_of(stage: ReductionStage, layout: Layout, wire: Wire = "fp32") -> LinkKey:
    """The link that a stage runs on."""
    specs = [[layout.gmi(gmi_id) for gmi_id in group] for group in stage.groups]
    return LinkKey(
        kind=stage.kind,
        ranks=max(len(group) for group in specs),
        at_once=len(specs),
        devices=max(len({spec.gpu_id for spec in group}) for group in specs),
        cores=len({core for group in specs for spec in group for core in spec.cores}),
        wire=wire,
        backend="+".join(sorted({spec.backend for group in specs for spec in group})),
    )


def project(keys: Sequence[LinkKey], links: Mapping[LinkKey, Link], nbytes: float) -> float | None:
    """Seconds of stages on these links, added up; None while one of them is unknown."""
    total_s = 0.0
    for key in keys:
        link = links.get(key)
        if link is None:
            return None
        total_s += link.seconds(nbytes)
    return total_s


def _mrr(mpl: MPL) -> tuple[ReductionStage, ...]:
    rings = tuple(zip(*mpl, strict=True))  # ring i: the i-th GMI of every device
    if len(rings) == 1:
        return (ReductionStage("ring", rings),)
    endpoints = tuple(ring[i] for i, ring in enumerate(rings))
    return (
        ReductionStage("ring", rings),
        ReductionStage("ring", (endpoints,)),
        ReductionStage("ring_bcast", rings),
    )


def _har(mpl: MPL, kind: LinkKind) -> tuple[ReductionStage, ...]:
    inside = tuple(tuple(gmis) for gmis in mpl if len(gmis) > 1)
    leaders = ReductionStage("ring", (tuple(gmis[0] for gmis in mpl),))
    return (ReductionStage(kind, inside), leaders) if inside else (leaders,)


def _all(mpl: MPL) -> tuple[tuple[int, ...], ...]:
    return (tuple(gmi_id for gmis in mpl for gmi_id in gmis),)


_STAGES: Final[dict[Strategy, Callable[[MPL], tuple[ReductionStage, ...]]]] = {
    "local": lambda mpl: (),
    "mpr": lambda mpl: (ReductionStage("host", _all(mpl)),),
    "mrr": _mrr,
    "ipc": lambda mpl: (ReductionStage("ipc", _all(mpl)),),
}
