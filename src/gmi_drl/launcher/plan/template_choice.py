"""The templates of a mode beside each other: what the papers' model says of each, and what fits."""

from __future__ import annotations

from dataclasses import dataclass

from gmi_drl.placement import Config, Layout, check
from gmi_drl.placement.config.layout import LayoutConfig
from gmi_drl.placement.costs import PAPER
from gmi_drl.placement.templates import Template, templates_of


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
    templates = templates_of(config.mode)
    known = {t.name: t.cost.throughput(PAPER) for t in templates if t.cost is not None}
    best = max(known.values(), default=1.0)
    return [
        TemplateRow(
            template.name,
            template.name == layout.template,
            known[template.name] / best if template.name in known else None,
            _why(template),
            "" if template.name == layout.template else _why_not(config, layout, template.name),
        )
        for template in templates
    ]


def _why(template: Template) -> str:
    cost = template.cost
    if cost is None:
        return "the only one whose trainers have devices alone"
    if template.is_split:
        what = "experience" if cost.trains else "observations and actions"
        sends_s = cost.com_s(PAPER)
        sends = sends_s / (cost.iteration_s(PAPER) - sends_s)
        return f"sending {what} takes {sends:.3g} times the work"
    between = "nothing is sent between GMIs" + (" but gradients" if cost.trains else "")
    split = next(other.cost for other in templates_of(template.mode) if other.is_split)
    more = 0.0 if split is None else cost.penalty(split, PAPER)
    return f"{between}, for {100 * more:.0f} % more of a device"


def _why_not(config: Config, layout: Layout, name: str) -> str:
    most = max(map(len, layout.mpl))
    trying = LayoutConfig.model_validate({"template": name, "gmi_per_gpu": most})
    faults = check(config.model_copy(update={"layout": trying}), layout.topology)
    return faults[0].rule if faults else ""
