"""Holds the templates: a new one is a file of this folder and a name in `TEMPLATES`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from .decoupled import decoupled
from .parameter_server import parameter_server
from .tcg import tcg
from .tcg_ex import tcg_ex
from .tdg import tdg
from .tdg_ex import rollout_workers_of, tdg_ex
from .template import Channel, Roles, Shape, Template

__all__ = [
    "TEMPLATES", "Channel", "Roles", "Shape", "Template", "TemplateName", "decoupled",
    "parameter_server", "rollout_workers_of", "tcg", "tcg_ex", "tdg", "tdg_ex", "templates_of",
]  # fmt: skip

# The first one of a mode is its `auto`.
TEMPLATES: Final[dict[str, Template]] = {
    template.name: template for template in (tcg_ex, tdg_ex, parameter_server, decoupled, tcg, tdg)
}

if TYPE_CHECKING:
    TemplateName = str
else:
    TemplateName = Literal[tuple(TEMPLATES)]


def templates_of(mode: str) -> list[Template]:
    """Returns the templates that can run a mode, its own first."""
    return [template for template in TEMPLATES.values() if template.mode == mode]
