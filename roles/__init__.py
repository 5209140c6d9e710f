"""Roles: what runs in a GMI. `DRL_role` is the class to subclass, `Holistic` the default.

Nothing heavy is imported until it is asked for: a launcher names `GmiHost` without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .async_agent import AsyncAgent
    from .async_trainer import AsyncTrainer
    from .errors import CheckpointError, ContextError, NotFiniteError, RoleError, RoleLoadError
    from .holistic import Holistic
    from .manager import GMI_manager, GmiContext
    from .role import DRL_role, load_role
    from .serving import Serving
    from .serving_pair import ServingAgent, ServingSimulator
    from .sync_agent import SyncAgent
    from .sync_trainer import SyncTrainer

_HOME = {
    "AsyncAgent": "async_agent",
    "AsyncTrainer": "async_trainer",
    "CheckpointError": "errors",
    "ContextError": "errors",
    "DRL_role": "role",
    "GMI_manager": "manager",
    "GmiContext": "manager",
    "Holistic": "holistic",
    "NotFiniteError": "errors",
    "Serving": "serving",
    "ServingAgent": "serving_pair",
    "ServingSimulator": "serving_pair",
    "SyncAgent": "sync_agent",
    "SyncTrainer": "sync_trainer",
    "RoleError": "errors",
    "RoleLoadError": "errors",
    "load_role": "role",
}

__all__ = [
    "AsyncAgent",
    "AsyncTrainer",
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
    "SyncAgent",
    "SyncTrainer",
    "load_role",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
