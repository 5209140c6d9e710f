"""N environments of a MuJoCo task with MJX's physics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gmi_drl.roles.envs.on_device.prepare import prepare
from gmi_drl.roles.envs.on_device.vec import DeviceVecEnv

from .options import OPTIONS
from .world import MjxWorld


class MjxVecEnv(DeviceVecEnv):
    """A DeviceVecEnv over an `MjxWorld`. Its first `reset` compiles, for tens of seconds; that of
    another one of the same size finds it in JAX's cache, in this process and in others. One that
    is made for its spaces compiles nothing.

    `compiling`, which may be set before the first `reset`, gives what is entered around that.
    """

    compiling: Callable[[], AbstractContextManager[None]]

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
        self.compiling = nullcontext
        self._compiled = False

    def reset(self, seed: int | None = None) -> Tensor:
        if not self._compiled:
            with self.compiling():
                self._compile()
            self._compiled = True
        return super().reset(seed)

    @torch.no_grad()
    def _compile(self) -> None:
        """By running it; `reset` writes all that the next step reads."""
        with self._world.on_torch_stream():
            self._world.step(self._frame_skip, self._task.rne_post)
            if self._derived:
                self._world.forward()
