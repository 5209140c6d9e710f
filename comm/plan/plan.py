"""Plans gradient reduction: the paper's choice, and the one that this machine's links say.

Algorithm 1 looks at the layout alone, and Table 2 at bandwidths. Both are shown beside what was
measured: alpha + beta * bytes of a strategy's links added up, the cheapest chosen.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from gmi_drl.comm.errors import CommError
from gmi_drl.comm.group.group import Wire
from gmi_drl.comm.links.link_record import fingerprint, load, record_path, store
from gmi_drl.comm.links.links import Link, LinkKey
from gmi_drl.gmi import backend_of
from gmi_drl.placement.faults import counted
from gmi_drl.placement.layout import Layout
from gmi_drl.placement.reduction import STRATEGIES, Strategy, algorithm_1_with_reason, reducing
from gmi_drl.placement.topology import Topology
from gmi_drl.runtime.cache_files import locked

from .capability import LinkFacts, link_facts, why_not
from .measure import DEADLINE, measure
from .project import ReductionStage, StrategyCost, decide, key_of, measured, project_all, stages_of

# needed: what the choice needs and is not known; missing: all that is not known; anew: everything.
Measure: TypeAlias = Literal["no", "needed", "missing", "anew"]
_FLOAT_BYTES: Final = 4


@dataclass(frozen=True)
class ReductionPlan:
    """The decision, its reason, and every number it was decided by."""

    wanted: str  # comm.reduction
    strategy: Strategy
    why: str
    paper: Strategy  # Algorithm 1's answer
    paper_why: str
    numel: int  # of a gradient
    wire: Wire
    rows: tuple[StrategyCost, ...]
    links: Mapping[LinkKey, Link]  # of the rows' links, those that are known
    notes: tuple[str, ...] = ()  # what the user should know: what was measured, what went wrong

    @property
    def nbytes(self) -> int:
        """Returns the bytes of one gradient, as float32."""
        return self.numel * _FLOAT_BYTES

    @property
    def fastest(self) -> Strategy | None:
        """Returns the cheapest by measured links; None while one that could run is not measured."""
        return next(iter(measured(self.rows)), None)

    def as_json(self) -> dict[str, Any]:
        """Returns everything as JSON's types; of a run it is in plan.json."""
        return {
            "wanted": self.wanted,
            "strategy": self.strategy,
            "why": self.why,
            "fastest": self.fastest,
            "algorithm_1": {"strategy": self.paper, "why": self.paper_why},
            "gradient": {"numel": self.numel, "wire": self.wire, "bytes": self.nbytes},
            "strategies": [
                {
                    "strategy": row.strategy,
                    "why_not": row.why_not,
                    "table_2_s": row.paper_s,
                    "measured_s": row.measured_s,
                    "links": [str(key) for key in row.links],
                }
                for row in self.rows
            ],
            "links": [
                {"link": str(key)} | dataclasses.asdict(key) | dataclasses.asdict(link)
                for key, link in sorted(self.links.items())
            ],
            "notes": list(self.notes),
        }


def plan_reduction(
    wanted: str, layout: Layout, numel: int, *, wire: Wire = "fp32", measure: Measure = "needed",
    repeatable: bool = False, facts: LinkFacts | None = None,
) -> ReductionPlan:  # fmt: skip
    """Plans what `comm.reduction: wanted` means for a layout on this machine, and why.

    `numel` float32 are reduced at a time. Links may be measured, for seconds, and are then kept.
    With `repeatable` auto is Algorithm 1's answer. CommError when `wanted` cannot run here.
    """
    mpl = reducing(layout)
    if facts is None:
        facts = facts_of(layout)
    runs = [s for s in STRATEGIES if why_not(s, mpl, facts) is None]
    stages = {key_of(st, layout, wire): st for s in runs for st in stages_of(s, mpl, facts.inside)}
    decides = is_open(wanted, layout, facts, repeatable)
    wants = measure if measure != "needed" or decides else "no"
    links, notes = _links(stages, layout, facts, wants)
    rows = project_all(layout, mpl, facts, links, numel * _FLOAT_BYTES, wire=wire)
    strategy, why = decide(wanted, mpl, rows, repeatable)
    paper, paper_why = algorithm_1_with_reason(mpl)
    return ReductionPlan(
        wanted, strategy, why, paper=paper, paper_why=paper_why,
        numel=numel, wire=wire, rows=rows, links=links, notes=notes,
    )  # fmt: skip


def is_open(wanted: str, layout: Layout, facts: LinkFacts, repeatable: bool = False) -> bool:
    """Tells whether times decide: auto, several strategies can run, and clocks have a say."""
    mpl = reducing(layout)
    runs = [s for s in STRATEGIES if why_not(s, mpl, facts) is None]
    return wanted == "auto" and len(runs) > 1 and not repeatable


def facts_of(layout: Layout) -> LinkFacts:
    """Collects the facts about the devices of the reducer group. May ask a child process."""
    devices = []
    for gmis in reducing(layout):
        spec = layout.gmi(gmis[0])
        device = layout.topology.devices[spec.gpu_id]
        if backend_of(spec.backend).uses_mig:  # it will be cut, if it is not yet
            device = dataclasses.replace(device, mig_mode=True)
        devices.append(device)
    return link_facts(Topology(tuple(devices)))


def _links(
    stages: Mapping[LinkKey, ReductionStage], layout: Layout, facts: LinkFacts, wants: Measure
) -> tuple[dict[LinkKey, Link], tuple[str, ...]]:
    """Returns the stages' links, measured here if `wants` says so, and notes for the user."""
    path, machine = record_path(), fingerprint(layout.topology, facts.nccl)
    links, note = load(path, machine)
    if wants == "no" or not stages:
        return {key: links[key] for key in stages if key in links}, ()
    notes = [note] if note else []
    if wants == "anew" or not stages.keys() <= links.keys():
        with locked(path.with_suffix(".lock"), DEADLINE):
            if wants != "anew":
                links, _ = load(path, machine)  # the holder of the lock may have measured them
            missing = {k: s for k, s in stages.items() if wants == "anew" or k not in links}
            if missing:
                notes += _measure_into(links, missing, layout, path, machine)
    return {key: links[key] for key in stages if key in links}, tuple(notes)


def _measure_into(
    known: dict[LinkKey, Link], missing: Mapping[LinkKey, ReductionStage], layout: Layout,
    path: Path, machine: Mapping[str, str],
) -> list[str]:  # fmt: skip
    begin_s = time.monotonic()
    try:
        links = measure(missing, layout)
    except CommError as error:
        first, *rest = str(error).strip().splitlines()  # of a traceback the last line says most
        return [f"{first} ({rest[-1].strip()})" if rest else first]
    known.update(links)
    problem = store(path, machine, links)
    took_s = time.monotonic() - begin_s
    summary = f"measured {counted(len(links), 'link')} of this machine in {took_s:.1f} s"
    return [f"{summary}; {problem}" if problem else f"{summary}, kept in {path}"]
