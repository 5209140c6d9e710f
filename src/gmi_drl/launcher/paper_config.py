"""`gmi_drl.config`: the four settings of the paper's listing 1, as a view of the real config.

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
    """Settings by the paper's names; None means: as the config file says.

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
        """Set nothing."""
        for name in _CHECKS:
            object.__setattr__(self, name, None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _CHECKS:
            raise AttributeError(_unknown(name))
        if value is not None:
            _CHECKS[name](value)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:  # only what is not there comes here
        raise AttributeError(_unknown(name))

    def __repr__(self) -> str:
        return f"gmi_drl.config({', '.join(f'{n}={getattr(self, n)!r}' for n in _CHECKS)})"

    def apply_to(self, overrides: Iterable[str] = ()) -> list[str]:
        """Overrides for `load_config`: what is set here, then `overrides`, which win."""
        mine = []
        if self.num_GPUs is not None:
            mine.append(f"hardware.num_gpus={self.num_GPUs}")
        if self.GMI_backend is not None:
            mine.append(f"hardware.backend={self.GMI_backend.lower()}")
        return [*mine, *overrides]


def _unknown(name: str) -> str:
    return (
        f"gmi_drl.config.{name}; there are {', '.join(_CHECKS)}. "
        "Everything else is set in the config file or by overrides of launch()."
    )


def _num_gpus(value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(
            f"gmi_drl.config.num_GPUs={value!r}; must be a whole number. Use 1 or more."
        )


def _gpu_arch(value: Any) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"sm_\d+a?", value):
        raise ValueError(
            f"gmi_drl.config.GPU_arch={value!r}; must be like sm_80. Use sm_80 for an A100."
        )


def _enable_nccl(value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(
            f"gmi_drl.config.enable_NCCL={value!r}; must be a bool. Use True or False."
        )


def _backend(value: Any) -> None:
    name = value.lower() if isinstance(value, str) else value
    if name not in _BACKENDS:
        raise ValueError(
            f"gmi_drl.config.GMI_backend={value!r}; unknown backend. "
            f"Use one of {', '.join(_BACKENDS)}."
        )


_CHECKS: Final[dict[str, Callable[[Any], None]]] = {
    "num_GPUs": _num_gpus,
    "GPU_arch": _gpu_arch,
    "enable_NCCL": _enable_nccl,
    "GMI_backend": _backend,
}

config: Final = PaperConfig()
