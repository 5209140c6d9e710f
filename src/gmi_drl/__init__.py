"""Offers gmi-drl: deep-RL training on GPU multiplexing instances (GMIs).

Nothing heavy is imported here: a GMI must have its slice before anything touches CUDA.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .errors import GmiDrlError
    from .launcher.callbacks.callback import Callback
    from .launcher.paper_config import config
    from .launcher.start.result import RunResult
    from .launching import launch
    from .resizing import resize
    from .roles import DRL_role, GMI_manager, Holistic
    from .selector.search.searching import SearchResult, search
    from .selector.tune.tuning import Tuned, tune
    from .trained.evaluation import Evaluation, evaluate
    from .trained.policy import TrainedPolicy, load_policy

__all__ = [
    "Callback", "DRL_role", "Evaluation", "GMI_manager", "GmiDrlError", "Holistic", "RunResult",
    "SearchResult", "TrainedPolicy", "Tuned", "__version__", "config", "evaluate", "launch",
    "load_policy", "resize", "search", "tune",
]  # fmt: skip

_HOME = {
    "Callback": "gmi_drl.launcher.callbacks.callback",
    "DRL_role": "gmi_drl.roles",
    "Evaluation": "gmi_drl.trained.evaluation",
    "GMI_manager": "gmi_drl.roles",
    "GmiDrlError": "gmi_drl.errors",
    "Holistic": "gmi_drl.roles",
    "RunResult": "gmi_drl.launcher.start.result",
    "SearchResult": "gmi_drl.selector.search.searching",
    "TrainedPolicy": "gmi_drl.trained.policy",
    "Tuned": "gmi_drl.selector.tune.tuning",
    "config": "gmi_drl.launcher.paper_config",
    "evaluate": "gmi_drl.trained.evaluation",
    "launch": "gmi_drl.launching",
    "load_policy": "gmi_drl.trained.policy",
    "resize": "gmi_drl.resizing",
    "search": "gmi_drl.selector.search.searching",
    "tune": "gmi_drl.selector.tune.tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
