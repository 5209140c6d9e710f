"""Holds the roles that run in GMIs: `DRL_role` to subclass, `Holistic` the default.

Nothing heavy is imported until it is asked for: a launcher names `GmiHost` without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import CheckpointError as CheckpointError
    from .errors import ContextError as ContextError
    from .errors import NotFiniteError as NotFiniteError
    from .errors import RoleError as RoleError
    from .errors import RoleLoadError as RoleLoadError
    from .role.manager import GMI_manager as GMI_manager
    from .role.manager import GmiContext as GmiContext
    from .role.role import DRL_role as DRL_role
    from .role.role import load_role as load_role
    from .role.trainer import Agent as Agent
    from .role.trainer import Holistic as Holistic
    from .role.trainer import Trainer as Trainer
    from .serving.serving import Serving as Serving
    from .serving.serving_pair import ServingAgent as ServingAgent
    from .serving.serving_pair import ServingSimulator as ServingSimulator

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

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
