"""Projects what each strategy takes, from its stages and this machine's links, and chooses one.

Its stages (docs/reduction.md) begin when the one before is over on all ranks; where a strategy
overlaps them it is faster than projected. Of devices of different sizes the largest one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gmi_drl.comm.errors import CommError
from gmi_drl.comm.group.group import Wire
from gmi_drl.comm.links.links import Link, LinkKey, LinkKind
from gmi_drl.placement import costs
from gmi_drl.placement.layout import Layout
from gmi_drl.placement.reduction import MPL, STRATEGIES, Strategy, algorithm_1

from .capability import LinkFacts, why_not


@dataclass(frozen=True)
class ReductionStage:
    """One primitive, done by several groups of GMIs side by side."""

    kind: LinkKind
    groups: tuple[tuple[int, ...], ...]  # GMI ids; each group has two or more


def stages_of(
    strategy: Strategy, mpl: MPL, inside: LinkKind = "host"
) -> tuple[ReductionStage, ...]:
    """Returns the stages of a strategy that `shape_fault` allows on `mpl`.

    `inside`: how the GMIs of one device reduce, host or ipc.
    """
    everyone = (tuple(gmi_id for gmis in mpl for gmi_id in gmis),)
    if strategy == "mpr":
        return (ReductionStage("host", everyone),)
    if strategy == "ipc":
        return (ReductionStage("ipc", everyone),)
    if strategy == "har":
        several = tuple(tuple(gmis) for gmis in mpl if len(gmis) > 1)
        leaders = ReductionStage("ring", (tuple(gmis[0] for gmis in mpl),))
        return (ReductionStage(inside, several), leaders) if several else (leaders,)
    if strategy == "mrr":
        rings = tuple(zip(*mpl, strict=True))  # ring i: the i-th GMI of every device
        first = ReductionStage("ring", rings)
        if len(rings) == 1:
            return (first,)
        endpoints = tuple(ring[i] for i, ring in enumerate(rings))
        return first, ReductionStage("ring", (endpoints,)), ReductionStage("ring_bcast", rings)
    return ()


def key_of(stage: ReductionStage, layout: Layout, wire: Wire = "fp32") -> LinkKey:
    """Returns the link that a stage runs on."""
    specs = [[layout.gmi(gmi_id) for gmi_id in group] for group in stage.groups]
    return LinkKey(
        kind=stage.kind, ranks=max(len(group) for group in specs), at_once=len(specs),
        devices=max(len({spec.gpu_id for spec in group}) for group in specs),
        cores=len({core for group in specs for spec in group for core in spec.cores}), wire=wire,
        backend="+".join(sorted({spec.backend for group in specs for spec in group})),
    )  # fmt: skip


def project(keys: Sequence[LinkKey], links: Mapping[LinkKey, Link], nbytes: float) -> float | None:
    """Adds up the seconds of stages on these links; None while one of them is unknown."""
    if not links.keys() >= set(keys):
        return None
    return sum((links[key].seconds(nbytes) for key in keys), 0.0)


@dataclass(frozen=True)
class StrategyCost:
    """One strategy. `why_not` is None if it can run here; times of one reduction, seconds."""

    strategy: Strategy
    why_not: str | None
    paper_s: float | None  # Table 2, with bandwidths as measured; None where it has no equation
    measured_s: float | None  # None while a link is not measured
    links: tuple[LinkKey, ...]  # of its stages, in their order


def project_all(
    layout: Layout, mpl: MPL, facts: LinkFacts, links: Mapping[LinkKey, Link], nbytes: int,
    wire: Wire = "fp32",
) -> tuple[StrategyCost, ...]:  # fmt: skip
    """Says of each strategy why it cannot run, or what a reduction of `nbytes` takes."""
    rows = []
    for strategy in STRATEGIES:
        refused = why_not(strategy, mpl, facts)
        if refused is not None:
            rows.append(StrategyCost(strategy, refused, None, None, ()))
            continue
        stages = stages_of(strategy, mpl, facts.inside)
        keys = tuple(key_of(stage, layout, wire) for stage in stages)
        measured_s = project(keys, links, nbytes)
        bandwidths = _bandwidth(links, "host"), _bandwidth(links, "ring")  # B1, B2
        paper_s = _table_2(strategy, mpl, nbytes, *bandwidths)
        rows.append(StrategyCost(strategy, None, paper_s, measured_s, keys))
    return tuple(rows)


def decide(
    wanted: str, mpl: MPL, rows: Sequence[StrategyCost], repeatable: bool = False
) -> tuple[Strategy, str]:
    """Chooses the strategy, and says why. CommError when `wanted` cannot run."""
    count = sum(len(gmis) for gmis in mpl)
    if count < 2:
        subject = "there is one GMI" if count else "no GMI trains"
        return "local", f"{subject}, so there is nothing to reduce"
    runnable = {row.strategy: row for row in rows if row.why_not is None}
    if wanted != "auto":
        refused = next(row for row in rows if row.strategy == wanted)
        if refused.why_not is not None:
            raise CommError(f"comm.reduction={wanted!r}: {refused.why_not}")
        return refused.strategy, "the config asks for it"
    if len(runnable) == 1:
        return next(iter(runnable)), "no other strategy can run here"
    times = measured(rows)
    if times and not repeatable:
        order = list(times)
        slower = ", ".join(f"{s} {duration_text(times[s])}" for s in order[1:])
        return order[0], f"{duration_text(times[order[0]])} by measured links, {slower}"
    paper = algorithm_1(mpl)
    reason = (
        "run.deterministic leaves nothing to a clock" if repeatable else "links are not measured"
    )
    if paper in runnable:
        return paper, f"Algorithm 1, since {reason}"
    return "mpr", f"{reason}, and Algorithm 1's {paper} cannot run here"


def measured(rows: Sequence[StrategyCost]) -> dict[Strategy, float]:
    """Returns the seconds of all that can run, fastest first; empty while one is unknown.

    Of two that take the same time the simpler one comes first.
    """
    runnable = [row for row in rows if row.why_not is None]
    times = {row.strategy: row.measured_s for row in runnable if row.measured_s is not None}
    if len(times) < len(runnable):
        return {}
    return dict(sorted(times.items(), key=lambda item: item[1]))


def duration_text(seconds: float) -> str:
    """Writes 0.000076 as 76 us."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _table_2(
    strategy: Strategy, mpl: MPL, nbytes: int, b1: float | None, b2: float | None
) -> float | None:
    """Returns Table 2's seconds. Its devices have equal numbers of GMIs: the largest counts."""
    t, g = max((len(gmis) for gmis in mpl), default=1), len(mpl)
    if strategy == "local":
        return 0.0
    if strategy == "mpr" and b1:
        return costs.ring(sum(len(gmis) for gmis in mpl), nbytes, b1)
    if strategy == "mrr" and b2:
        return costs.mrr(t, g, nbytes, b2)
    if strategy == "har" and b1 and b2:
        return costs.har(t, g, nbytes, b1, b2)
    return None


def _bandwidth(links: Mapping[LinkKey, Link], kind: LinkKind) -> float | None:
    """Returns Table 2's bandwidth, bytes/s, of the widest link of a kind.

    One ring of n members takes 2 (n - 1) bytes / (n B), so that B = 2 (n - 1) / (n beta).
    """
    keys = [key for key in links if key.kind == kind]
    if not keys:
        return None
    key = max(keys, key=lambda key: (key.ranks, -key.at_once))
    return 2 * (key.ranks - 1) / key.ranks * links[key].bandwidth
