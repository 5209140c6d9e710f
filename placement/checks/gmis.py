"""Checks that the GMIs of a Layout have the roles of its template, peers, and environments."""

from __future__ import annotations

from collections.abc import Iterator

from gmi_drl.placement.faults import Fault, spec_fault
from gmi_drl.placement.layout import Layout
from gmi_drl.placement.templates import TEMPLATES, Template


def gmi_faults(layout: Layout, num_env: int) -> list[Fault]:
    """Lists roles that the template lacks, roles without a peer, other numbers of environments.

    `num_env` is the config's, which every simulator has.
    """
    template = TEMPLATES.get(layout.template)
    if template is None:
        known = f"Use one of {', '.join(TEMPLATES)}."
        return [Fault("layout.template", layout.template, "there is no such template", known)]
    faults = list(_roles(template, layout)) or list(template.peer_faults(layout, num_env))
    return [*faults, *_environments(layout, num_env)]


def _roles(template: Template, layout: Layout) -> Iterator[Fault]:
    for gmi in layout.gmis:
        if gmi.roles not in template.gmis:
            kinds = " or ".join(", ".join(roles) for roles in template.gmis)
            yield spec_fault(
                gmi, "roles", list(gmi.roles), f"a GMI of template {template.name} has {kinds}",
                "Use these, or another template.",
            )  # fmt: skip


def _environments(layout: Layout, num_env: int) -> Iterator[Fault]:
    for gmi in layout.gmis:
        simulates = "simulator" in gmi.roles
        if simulates and gmi.num_env != num_env:
            yield spec_fault(
                gmi, "num_env", gmi.num_env, f"env.num_env is {num_env}, and GMIs do not differ "
                "in it: one step would wait for the largest",
                "Leave it out, or change env.num_env.",
            )  # fmt: skip
        elif not simulates and gmi.num_env:
            yield spec_fault(gmi, "num_env", gmi.num_env, "it simulates nothing", "Leave it out.")
