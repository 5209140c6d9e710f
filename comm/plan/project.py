"""Every strategy projected, and one chosen: arithmetic on what is known, nothing is asked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gmi_drl.comm.errors import CommError
from gmi_drl.comm.group.group import Wire
from gmi_drl.placement import costs
from gmi_drl.placement.layout import Layout
from gmi_drl.placement.reduction import MPL, STRATEGIES, Strategy, algorithm_1

from .capability import LinkFacts, why_not
from .links import Link, LinkKey, LinkKind
from .stages import key_of, project, stages_of


@dataclass(frozen=True)
class StrategyCost:
    """One strategy. `why_not` is None if it can run here; times of one reduction, seconds."""

    strategy: Strategy
    why_not: str | None
    paper_s: float | None  # Table 2, with bandwidths as measured; None where it has no equation
    measured_s: float | None  # None while a link is not measured
    links: tuple[LinkKey, ...]  # of its stages, in their order


def project_all(
    layout: Layout,
    mpl: MPL,
    facts: LinkFacts,
    links: Mapping[LinkKey, Link],
    nbytes: int,
    wire: Wire = "fp32",
) -> tuple[StrategyCost, ...]:
    """Every strategy: why it cannot run, or what a reduction of `nbytes` of float32 takes."""
    rows = []
    for strategy in STRATEGIES:
        refused = why_not(strategy, mpl, facts)
        if refused is not None:
            rows.append(StrategyCost(strategy, refused, None, None, ()))
            continue
        keys = tuple(
            key_of(stage, layout, wire) for stage in stages_of(strategy, mpl, facts.inside)
        )
        measured_s = project(keys, links, nbytes)
        paper_s = _table_2(strategy, mpl, nbytes, *bandwidths(links))
        rows.append(StrategyCost(strategy, None, paper_s, measured_s, keys))
    return tuple(rows)


def decide(
    wanted: str, mpl: MPL, rows: Sequence[StrategyCost], repeatable: bool = False
) -> tuple[Strategy, str]:
    """The strategy, and why. CommError when `wanted` cannot run."""
    count = sum(len(gmis) for gmis in mpl)
    if count < 2:
        who = "there is one GMI" if count else "no GMI trains"
        return "local", f"{who}, so there is nothing to reduce"
    can = {row.strategy: row for row in rows if row.why_not is None}
    if wanted != "auto":
        refused = next(row for row in rows if row.strategy == wanted)
        if refused.why_not is not None:
            raise CommError(f"comm.reduction={wanted!r}: {refused.why_not}")
        return refused.strategy, "the config asks for it"
    if len(can) == 1:
        return next(iter(can)), "no other strategy can run here"
    times = measured(rows)
    if times and not repeatable:
        order = list(times)
        others = ", ".join(f"{s} {duration_text(times[s])}" for s in order[1:])
        return order[0], f"{duration_text(times[order[0]])} by measured links, {others}"
    paper = algorithm_1(mpl)
    reason = (
        "run.deterministic leaves nothing to a clock" if repeatable else "links are not measured"
    )
    if paper in can:
        return paper, f"Algorithm 1, since {reason}"
    return "mpr", f"{reason}, and Algorithm 1's {paper} cannot run here"


def measured(rows: Sequence[StrategyCost]) -> dict[Strategy, float]:
    """Projected seconds of all strategies that can run, fastest first; empty while one is unknown.

    Of two that take the same time the simpler one comes first.
    """
    can = [row for row in rows if row.why_not is None]
    times = {row.strategy: row.measured_s for row in can if row.measured_s is not None}
    if len(times) < len(can):
        return {}
    return dict(sorted(times.items(), key=lambda item: item[1]))


def bandwidths(links: Mapping[LinkKey, Link]) -> tuple[float | None, float | None]:
    """(B1, B2) as Table 2 means them, bytes/s: of the widest host link, and of the widest ring.

    One ring of n members takes 2 (n - 1) bytes / (n B), so that B = 2 (n - 1) / (n beta).
    """
    return _bandwidth(links, "host"), _bandwidth(links, "ring")


def duration_text(seconds: float) -> str:
    """0.000076 -> 76 us."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _table_2(
    strategy: Strategy, mpl: MPL, nbytes: int, b1: float | None, b2: float | None
) -> float | None:
    """Table 2's seconds. It has no devices with different numbers of GMIs: the largest counts."""
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
    of_kind = [key for key in links if key.kind == kind]
    if not of_kind:
        return None
    key = max(of_kind, key=lambda key: (key.ranks, -key.at_once))
    return 2 * (key.ranks - 1) / key.ranks * links[key].bandwidth
