"""Names what the fork server imports once for all GMIs, while the launcher reads the config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

PRELOAD: Final = (
    "torch",
    "torch._dynamo",  # which every torch.optim imports, in a second
    "gymnasium",
    "gmi_drl.comm.reducers.shared_group",
    "gmi_drl.comm.reducers.mpr",
    "gmi_drl.comm.mailbox.mailbox",
    "gmi_drl.roles.role.trainer",
    "gmi_drl.roles.envs.mujoco.vec",
    "gmi_drl.roles.envs.torch_envs.make",
)
# warp and mujoco_warp take some five seconds. Importing them loads no library of warp's, and does
# not start CUDA: wp.init() does, in the GMI, when the environments are made.
_WARP: Final = "gmi_drl.roles.envs.warp.vec"
_NAMES_WARP: Final = re.compile(r"""\badapter["']?\s*[:=]\s*["']?warp\b""")


def preload_of(*given: object) -> tuple[str, ...]:
    """Returns PRELOAD, and the modules of adapter `warp` where one of `given` names it.

    `given` is what is known before a config is loaded: the config or its file, overrides, the
    folder of a run to go on with, the words of a command line. What cannot be read names nothing,
    and a name that something else overrides costs time, and nothing else.
    """
    return (*PRELOAD, _WARP) if any(map(_names_warp, given)) else PRELOAD


def _names_warp(given: Any) -> bool:
    if isinstance(given, str | Path):
        return bool(_NAMES_WARP.search(str(given)) or _NAMES_WARP.search(_text(Path(given))))
    if isinstance(given, Mapping):
        env = given.get("env")
        return isinstance(env, Mapping) and env.get("adapter") == "warp"
    if isinstance(given, Iterable) and not hasattr(given, "env"):
        return any(map(_names_warp, given))
    return getattr(getattr(given, "env", None), "adapter", None) == "warp"


def _text(path: Path) -> str:
    """Returns a config's file, or that of the run whose folder, or checkpoint, this is.

    Only of what can be read again: a pipe's text is for who loads it.
    """
    with suppress(OSError, ValueError):
        folders = (path, *path.resolve().parents[:2]) if path.is_dir() else ()
        for file in (path, *(folder / "config.yaml" for folder in folders)):
            if file.is_file():
                return file.read_text(encoding="utf-8")
    return ""
