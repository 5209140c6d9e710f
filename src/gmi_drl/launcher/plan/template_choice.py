"""The templates of a mode beside each other: what the papers' model says of each, and what fits."""

from __future__ import annotations

from dataclasses import dataclass

from gmi_drl.placement import Config, Layout, check, costs
from gmi_drl.placement.config.config import LayoutConfig
from gmi_drl.placement.templates.templates import OF_MODE


@dataclass(frozen=True)
class TemplateRow:
    """One template of the config's mode. None: Tables 4 and 5 do not have it."""

    template: str
    chosen: bool
    relative: float | None  # throughput, that of the best being 1
    why: str
    why_not: str  # why it cannot run here; "" when it can


def compare_templates(config: Config, layout: Layout) -> list[TemplateRow]:
    """The templates of the config's mode, its own first, by GMI-DRL's Tables 3 to 5.

    With the paper's constants, which do not depend on the number of trainers, the numbers say what
    the paper found, on its simulators and GPUs; bench/templates.py measures them.
    """
    names = OF_MODE[config.mode]
    known = {name: costs.throughput(name, costs.PAPER) for name in names if name in costs.TABLES}
    best = max(known.values(), default=1.0)
    return [
        TemplateRow(
            name,
            name == layout.template,
            known[name] / best if name in known else None,
            _why(name) if name in known else "the only one whose trainers have devices alone",
            "" if name == layout.template else _why_not(config, layout, name),
        )
        for name in names
    ]


def _why(name: str) -> str:
    trains, w = name.endswith("_ex"), costs.PAPER
    sends = costs.com_s(name, w) / (costs.iteration_s(name, w) - costs.com_s(name, w))
    between = "nothing is sent between GMIs" + (" but gradients" if trains else "")
    if name in costs.SPLIT:
        what = "experience" if trains else "observations and actions"
        return f"sending {what} takes {sends:.3g} times the work"
    more = costs.penalty(name, "tdg_ex" if trains else "tdg", w)
    return f"{between}, for {100 * more:.0f} % more of a device"


def _why_not(config: Config, layout: Layout, name: str) -> str:
    most = max(map(len, layout.mpl))
    trying = LayoutConfig.model_validate({"template": name, "gmi_per_gpu": most})
    faults = check(config.model_copy(update={"layout": trying}), layout.topology)
    return faults[0].rule if faults else ""
