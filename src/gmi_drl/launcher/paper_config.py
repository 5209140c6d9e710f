"""Holds `gmi_drl.config`: the four settings of the paper's listing 1, over the real config.

    import gmi_drl
    gmi_drl.config.num_GPUs = 3
    gmi_drl.config.GMI_backend = "direct"

What is set here goes over the config file of a later `launch` or `tune`, and under their own
overrides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

_BACKENDS: Final = ("auto", "cpu", "direct", "mps", "mig", "green")


class PaperConfig:
    """Holds settings by the paper's names; None means: as the config file says.

    - `num_GPUs`: devices to use; without a GPU, groups of cores.
    - `GPU_arch`: "sm_80" and the like. Noted only: no backend depends on it.
    - `enable_NCCL`: True or False. Noted only: no reduction uses NCCL.
    - `GMI_backend`: "auto", "cpu", "direct", "mps", "mig" or "green", in any case.
    """

    num_GPUs: int | None
    GPU_arch: str | None
    enable_NCCL: bool | None
    GMI_backend: str | None

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all settings."""
        for name in _CHECKS:
            object.__setattr__(self, name, None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _CHECKS:
            raise AttributeError(_unknown(name))
        is_valid, rule = _CHECKS[name]
        if value is not None and not is_valid(value):
            raise ValueError(f"gmi_drl.config.{name}={value!r}; {rule}")
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:  # called for unknown names alone
        raise AttributeError(_unknown(name))

    def __repr__(self) -> str:
        return f"gmi_drl.config({', '.join(f'{n}={getattr(self, n)!r}' for n in _CHECKS)})"

    def apply_to(self, overrides: Iterable[str] = ()) -> list[str]:
        """Returns overrides for `load_config`: what is set here, then `overrides`, which win."""
        settings = []
        if self.num_GPUs is not None:
            settings.append(f"hardware.num_gpus={self.num_GPUs}")
        if self.GMI_backend is not None:
            settings.append(f"hardware.backend={self.GMI_backend.lower()}")
        return [*settings, *overrides]


def _unknown(name: str) -> str:
    return (
        f"gmi_drl.config.{name}; there are {', '.join(_CHECKS)}. "
        "Everything else is set in the config file or by overrides of launch()."
    )


# Of each setting: whether a value is one, and the rule and remedy where it is not.
_CHECKS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "num_GPUs": (lambda v: type(v) is int and v > 0, "must be a whole number. Use 1 or more."),
    "GPU_arch": (
        lambda v: isinstance(v, str) and bool(re.fullmatch(r"sm_\d+a?", v)),
        "must be like sm_80. Use sm_80 for an A100.",
    ),
    "enable_NCCL": (lambda v: isinstance(v, bool), "must be a bool. Use True or False."),
    "GMI_backend": (
        lambda v: isinstance(v, str) and v.lower() in _BACKENDS,
        f"unknown backend. Use one of {', '.join(_BACKENDS)}.",
    ),
}

config: Final = PaperConfig()
