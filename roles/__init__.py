"""Roles: what runs in a GMI. `DRL_role` is the class to subclass, `Holistic` the default."""

from .errors import CheckpointError, ContextError, NotFiniteError, RoleError, RoleLoadError
from .holistic import Holistic
from .manager import GMI_manager, GmiContext
from .role import DRL_role, load_role

__all__ = [
    "CheckpointError",
    "ContextError",
    "DRL_role",
    "GMI_manager",
    "GmiContext",
    "Holistic",
    "NotFiniteError",
    "RoleError",
    "RoleLoadError",
    "load_role",
]
