"""Holds the roles that run in GMIs: `DRL_role` to subclass, `Holistic` the default.

Nothing heavy is imported until it is asked for: a launcher names `GmiHost` without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import CheckpointError, ContextError, NotFiniteError, RoleError, RoleLoadError
    from .role.manager import GMI_manager, GmiContext
    from .role.role import DRL_role, load_role
    from .role.trainer import Agent, Holistic, Trainer
    from .serving.serving import Serving
    from .serving.serving_pair import ServingAgent, ServingSimulator

_HOME = {
    "Agent": "role.trainer",
    "CheckpointError": "errors",
    "ContextError": "errors",
    "DRL_role": "role.role",
    "GMI_manager": "role.manager",
    "GmiContext": "role.manager",
    "Holistic": "role.trainer",
    "NotFiniteError": "errors",
    "RoleError": "errors",
    "RoleLoadError": "errors",
    "Serving": "serving.serving",
    "ServingAgent": "serving.serving_pair",
    "ServingSimulator": "serving.serving_pair",
    "Trainer": "role.trainer",
    "load_role": "role.role",
}

__all__ = [
    "Agent",
    "CheckpointError",
    "ContextError",
    "DRL_role",
    "GMI_manager",
    "GmiContext",
    "Holistic",
    "NotFiniteError",
    "RoleError",
    "RoleLoadError",
    "Serving",
    "ServingAgent",
    "ServingSimulator",
    "Trainer",
    "load_role",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
