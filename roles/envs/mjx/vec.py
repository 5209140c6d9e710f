"""N environments of a MuJoCo task with MJX's physics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gmi_drl.roles.envs.on_device.prepare import prepare
from gmi_drl.roles.envs.on_device.vec import DeviceVecEnv

from .options import OPTIONS
from .world import MjxWorld


class MjxVecEnv(DeviceVecEnv):
    """A DeviceVecEnv over an `MjxWorld`. Making it compiles, for tens of seconds; another one of
    the same size finds that in JAX's cache, in this process and in others."""

    def __init__(
        self,
        env_id: str,
        num_env: int,
        *,
        options: Mapping[str, Any],
        max_episode_steps: int | None,
        device: torch.device,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        parsed, model, device = prepare(OPTIONS, env_id, options, device)
        super().__init__(
            env_id, MjxWorld(model, num_env, device), model, parsed,
            max_episode_steps=max_episode_steps, seed=seed, dtype=dtype,
        )  # fmt: skip
        # Compiles; `reset` and load_state_dict write all that the next step reads.
        with torch.no_grad(), self._world.on_torch_stream():
            self._world.step(self._frame_skip, self._task.rne_post)
            if self._derived:
                self._world.forward()
