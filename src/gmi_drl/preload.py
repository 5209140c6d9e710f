"""What the fork server imports once for all GMIs, while the launcher reads the config."""

from __future__ import annotations

from typing import Final

PRELOAD: Final = (
    "torch",
    "torch.utils.tensorboard",
    "mujoco",
    "gymnasium",
    "gmi_drl.roles.host",
    "gmi_drl.roles.envs.mujoco",
)
