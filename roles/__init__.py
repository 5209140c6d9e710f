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

_NAMES = {
    "errors": ("CheckpointError", "ContextError", "NotFiniteError", "RoleError", "RoleLoadError"),
    "role.manager": ("GMI_manager", "GmiContext"),
    "role.role": ("DRL_role", "load_role"),
    "role.trainer": ("Agent", "Holistic", "Trainer"),
    "serving.serving": ("Serving",),
    "serving.serving_pair": ("ServingAgent", "ServingSimulator"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
