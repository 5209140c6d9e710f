"""What the fork server imports once for all GMIs, while the launcher reads the config."""

from __future__ import annotations

from typing import Final

PRELOAD: Final = (
    "torch",
    "torch._dynamo",  # which every torch.optim imports, in a second
    "torch.utils.tensorboard",
    "gymnasium",
    "gmi_drl.comm.shared",
    "gmi_drl.comm.mpr",
    "gmi_drl.comm.mailbox",
    "gmi_drl.roles.holistic",
    "gmi_drl.roles.envs.mujoco.vec",
    "gmi_drl.roles.envs.torch_envs.make",
)
