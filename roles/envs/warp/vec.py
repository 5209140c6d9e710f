"""Steps N environments of a MuJoCo task with mujoco_warp's physics."""

from __future__ import annotations

import logging

import torch

from gmi_drl.roles.envs.on_device.vec import DeviceVecEnv, prepare
from gmi_drl.roles.envs.protocol import VecEnvSpec

from .capture import CaptureStage, Replay, capture_obstacle
from .options import OPTIONS
from .world import WarpWorld

_log = logging.getLogger(__name__)


class WarpVecEnv(DeviceVecEnv):
    """Is a DeviceVecEnv that, on CUDA, captures its step when it is made.

    A captured step is a replay of graphs and does not wait for the device. `reset` does, and so
    does a step that is not captured: outside of a capture the solver's loop asks after every round
    who has converged. Memory: a Data of mujoco_warp for N worlds, most of it contacts and
    constraint rows.
    """

    def __init__(self, spec: VecEnvSpec) -> None:
        options, model, device = prepare(OPTIONS, spec)
        if options.solver_iterations is not None:
            model.opt.iterations = options.solver_iterations
        self._warp = WarpWorld(
            model, spec.num_env, device, nconmax=options.nconmax, njmax=options.njmax
        )
        super().__init__(spec, self._warp, model, options)
        if options.capture and device.type == "cuda":
            self._replay = self._capture()

    @torch.no_grad()
    def _capture(self) -> Replay | None:
        obstacle = capture_obstacle(self.device)
        if obstacle is not None:
            _log.warning("%s: steps are not captured: %s. They run slowly.", self.env_id, obstacle)
            return None
        stages = [
            CaptureStage("warp", self._physics),
            CaptureStage("torch", self._conclude),
            CaptureStage("warp", self._settle),
            CaptureStage("torch", self._begin),
        ]
        replay = Replay(stages if self._derived else [*stages[:2], stages[3]], self._warp)
        if replay.unrolled:
            _log.warning(
                "%s: the stream is of a green context, where the solver cannot loop in a graph: "
                "each physics step launches all its %d iterations. env.options.solver_iterations "
                "lowers them.", self.env_id, self._warp.solver_iterations,
            )  # fmt: skip
        self._count.zero_()  # capturing ran some steps
        self._counters.load([0, 0])
        return replay

    @property
    def captured(self) -> bool:
        """Tells whether a step is a replay of CUDA graphs."""
        return self._replay is not None

    def close(self) -> None:
        """Lets the graphs go, and with them the memory they hold; the rest goes with the object."""
        self._replay = None
