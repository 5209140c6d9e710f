"""Whether the GMIs of a Layout have the roles of its template, the peers, and the environments."""

from __future__ import annotations

from collections.abc import Iterator

from gmi_drl.placement.faults import Fault
from gmi_drl.placement.layout import Layout
from gmi_drl.placement.templates.channels import crews_of
from gmi_drl.placement.templates.templates import GMIS

from .spec_faults import place, spec_fault


def gmi_faults(layout: Layout, num_env: int) -> list[Fault]:
    """Roles that the template does not have, roles without a peer, other numbers of environments.

    `num_env` is the config's, which every simulator has.
    """
    if layout.template not in GMIS:
        known = f"Use one of {', '.join(GMIS)}."
        return [Fault("layout.template", layout.template, "there is no such template", known)]
    found = list(_roles(layout)) or list(_peers(layout, num_env))
    return [*found, *_environments(layout, num_env)]


def _roles(layout: Layout) -> Iterator[Fault]:
    known = GMIS[layout.template]
    for gmi in layout.gmis:
        if gmi.roles not in known:
            kinds = " or ".join(", ".join(roles) for roles in known)
            yield spec_fault(
                gmi, "roles", list(gmi.roles), f"a GMI of template {layout.template} has {kinds}",
                "Use these, or another template.",
            )  # fmt: skip


def _peers(layout: Layout, num_env: int) -> Iterator[Fault]:
    if layout.template == "decoupled":
        for role in ("agent", "trainer"):
            if not layout.holding(role):
                yield _lacking(layout, role)
    elif layout.template == "tdg":
        yield from _pairs(layout, num_env)
    elif layout.template == "tdg_ex":
        yield from _crews(layout)


def _crews(layout: Layout) -> Iterator[Fault]:
    """tdg_ex: every trainer has agents, and as many as the others."""
    for role in ("agent", "trainer"):
        if not layout.holding(role):
            yield _lacking(layout, role)
            return
    crews = crews_of(layout)
    first, its = next(iter(crews.items()))
    for trainer, agents in crews.items():
        if not agents:
            gmi = layout.gmi(trainer)
            yield spec_fault(
                gmi, "roles", list(gmi.roles), "it has no peer: no GMI of "
                f"{place(layout.topology.devices[gmi.gpu_id])} is left to collect for it",
                "Add one with simulator, agent there, or use template tcg_ex.",
            )  # fmt: skip
        elif len(agents) != len(its):
            yield spec_fault(
                layout.gmi(trainer), "roles", ["trainer"],
                f"{len(agents)} GMIs collect for it and {len(its)} for GMI {first}, and gradients "
                "are averaged as if all were of as many samples",
                "Give every trainer as many.",
            )  # fmt: skip


def _pairs(layout: Layout, num_env: int) -> Iterator[Fault]:
    """tdg: GMIs 2 k and 2 k + 1 are a simulator and its agent, on one device."""
    if num_env < 2:
        yield Fault(
            "env.num_env", num_env, "template tdg simulates one half of a GMI's environments while "
            "the other half is acted for",
            "Use 2 or more, or template tcg.",
        )  # fmt: skip
    gmis = layout.gmis
    if len(gmis) % 2:
        yield spec_fault(
            gmis[-1], "roles", list(gmis[-1].roles), "template tdg pairs GMIs 0 and 1, 2 and 3, "
            "and so on, and it is left over",
            "Give it a peer, or use template tcg.",
        )  # fmt: skip
    for one, other in zip(gmis[::2], gmis[1::2], strict=False):
        pair = f"GMIs {one.gmi_id} and {other.gmi_id} are a pair of template tdg"
        if (one.roles, other.roles) != GMIS["tdg"]:
            yield spec_fault(
                other, "roles", list(other.roles), f"{pair}, a simulator and its agent",
                "Write the simulator first, and its agent after it.",
            )  # fmt: skip
        elif one.gpu_id != other.gpu_id:
            yield spec_fault(
                other, "gpu", other.gpu_id, f"{pair}, and the simulator is on "
                f"{place(layout.topology.devices[one.gpu_id])}",
                f"Use {one.gpu_id}.",
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


def _lacking(layout: Layout, role: str) -> Fault:
    peer = layout.gmis[0]
    return spec_fault(
        peer, "roles", list(peer.roles), f"it has no peer: no GMI of the layout holds a {role}",
        f"Add one with {', '.join(next(r for r in GMIS[layout.template] if role in r))}.",
    )  # fmt: skip
