"""Holds the roles that run in GMIs: `DRL_role` to subclass, `Holistic` the default.

Nothing heavy is imported until it is asked for: a launcher names `GmiHost` without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gmi_drl.lazy import lazy

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
    ".errors": ("CheckpointError", "ContextError", "NotFiniteError", "RoleError", "RoleLoadError"),
    ".role.manager": ("GMI_manager", "GmiContext"),
    ".role.role": ("DRL_role", "load_role"),
    ".role.trainer": ("Agent", "Holistic", "Trainer"),
    ".serving.serving": ("Serving",),
    ".serving.serving_pair": ("ServingAgent", "ServingSimulator"),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)
__getattr__, __dir__ = lazy(__name__, _NAMES)
