"""Steps N environments of a MuJoCo task with MJX's physics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from gmi_drl.roles.envs.on_device.vec import DeviceVecEnv, prepare
from gmi_drl.roles.envs.protocol import VecEnvSpec

from .options import OPTIONS
from .world import MjxWorld


class MjxVecEnv(DeviceVecEnv):
    """Is a DeviceVecEnv over an `MjxWorld`.

    Its first `reset` compiles, for tens of seconds; that of another one of the same size finds it
    in JAX's cache, in this process and in others. One made for its spaces compiles nothing.

    `compiling`, which may be set before the first `reset`, gives what is entered around that.
    """

    compiling: Callable[[], AbstractContextManager[None]]

    def __init__(self, spec: VecEnvSpec) -> None:
        options, model, device = prepare(OPTIONS, spec)
        super().__init__(spec, MjxWorld(model, spec.num_env, device), model, options)
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
        """Compiles a step by running it; `reset` writes all that the next step reads."""
        with self._world.on_torch_stream():
            self._world.step(self._frame_skip, self._task.rne_post)
            if self._derived:
                self._world.forward()
