"""N environments of a MuJoCo task with mujoco_warp's physics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from gmi_drl.roles.envs.on_device.prepare import prepare
from gmi_drl.roles.envs.on_device.vec import DeviceVecEnv

from .capture import Replay, Stage, why_not
from .options import OPTIONS
from .world import WarpWorld

_log = logging.getLogger(__name__)


class WarpVecEnv(DeviceVecEnv):
    """A DeviceVecEnv that, on CUDA, captures its step when it is made.

    A captured step is a replay of graphs and does not wait for the device. `reset` does, and so
    does a step that is not captured: outside of a capture the solver's loop asks after every round
    who has converged. Memory: a Data of mujoco_warp for N worlds, most of it contacts and
    constraint rows.
    """

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
        if parsed.solver_iterations is not None:
            model.opt.iterations = parsed.solver_iterations
        self._warp = WarpWorld(model, num_env, device, nconmax=parsed.nconmax, njmax=parsed.njmax)
        super().__init__(
            env_id, self._warp, model, parsed, max_episode_steps=max_episode_steps, seed=seed,
            dtype=dtype,
        )  # fmt: skip
        if parsed.capture and device.type == "cuda":
            self._replay = self._capture()

    @torch.no_grad()
    def _capture(self) -> Replay | None:
        reason = why_not(self.device)
        if reason is not None:
            _log.warning("%s: steps are not captured: %s. They run slowly.", self.env_id, reason)
            return None
        stages = [
            Stage("warp", self._physics),
            Stage("torch", self._conclude),
            Stage("warp", self._settle),
            Stage("torch", self._begin),
        ]
        replay = Replay(stages if self._derived else [*stages[:2], stages[3]], self._warp)
        if replay.unrolled:
            _log.warning(
                "%s: the stream is of a green context, where the solver cannot loop in a graph: "
                "each physics step launches all its %d iterations. env.options.solver_iterations "
                "lowers them.", self.env_id, self._warp.solver_iterations,
            )  # fmt: skip
        self._count.zero_()  # capturing ran some steps
        self._counts.load([0, 0])
        return replay

    @property
    def captured(self) -> bool:
        """Whether a step is a replay of CUDA graphs."""
        return self._replay is not None

    def close(self) -> None:
        """Let the graphs go, and with them the memory they hold; the rest goes with the object."""
        self._replay = None
