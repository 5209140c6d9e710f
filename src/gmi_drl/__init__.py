"""Offers gmi-drl: deep-RL training on GPU multiplexing instances (GMIs).

Nothing heavy is imported here: a GMI must have its slice before anything touches CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazy

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

__getattr__, __dir__ = lazy(
    __name__,
    {
        ".errors": ["GmiDrlError"],
        ".launcher.callbacks.callback": ["Callback"],
        ".launcher.paper_config": ["config"],
        ".launcher.start.result": ["RunResult"],
        ".launching": ["launch"],
        ".resizing": ["resize"],
        ".roles": ["DRL_role", "GMI_manager", "Holistic"],
        ".selector.search.searching": ["SearchResult", "search"],
        ".selector.tune.tuning": ["Tuned", "tune"],
        ".trained.evaluation": ["Evaluation", "evaluate"],
        ".trained.policy": ["TrainedPolicy", "load_policy"],
    },
)
