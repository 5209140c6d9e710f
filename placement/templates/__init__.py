"""Holds the templates by name; a template says which roles share a GMI, and where GMIs lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from .serving import tcg, tdg
from .template import Shape, Template
from .training import decoupled, tcg_ex, tdg_ex

__all__ = [
    "TEMPLATES", "Shape", "Template", "TemplateName", "decoupled", "tcg", "tcg_ex", "tdg", "tdg_ex",
    "templates_of",
]  # fmt: skip

# Of a mode the first one is what `auto` means.
TEMPLATES: Final[dict[str, Template]] = {
    template.name: template for template in (tcg_ex, tdg_ex, decoupled, tcg, tdg)
}

if TYPE_CHECKING:
    TemplateName = str
else:
    TemplateName = Literal[tuple(TEMPLATES)]


def templates_of(mode: str) -> list[Template]:
    """Returns the templates that can run a mode, its own first."""
    return [template for template in TEMPLATES.values() if template.mode == mode]
