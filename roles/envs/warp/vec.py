"""Steps N environments of a MuJoCo task with mujoco_warp's physics, captured where it can be.

A step is captured as stages, CUDA graphs that are replayed in order.

A stage holds kernels of torch or kernels of warp, never both. mujoco_warp's solver loops until all
worlds have converged (`wp.capture_while`): a conditional node, at which warp ends the capture of
the graph and begins another one with another id. torch tells by that id which allocations belong to
its graph, so in a shared capture what it allocates behind the first loop would come from ordinary
memory, be freed, and be written by replays while others own it. Four launches a step are the price.

On a stream of a green context the loop is captured unrolled: all the iterations that the model
allows, and no conditional node. CUDA wants the kernels of such a node's body in the node's own
context (driver API, CUDA_CONDITIONAL_NODE_PARAMS); warp makes the node in the device's primary
context, and kernels captured on a green stream belong to the green one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import warp as wp

from gmi_drl.gmi.backends.green import is_green
from gmi_drl.roles.envs.on_device.tasks import WARP_OPTIONS
from gmi_drl.roles.envs.on_device.vec import DeviceVecEnv, prepare
from gmi_drl.roles.envs.protocol import VecEnvSpec
from gmi_drl.roles.graphs import Graph, Pool

from .world import WarpWorld, stream_of_torch

_log = logging.getLogger(__name__)
_WARM_UP = 2  # runs before the capture: the first compiles and loads kernels, and may allocate


class CaptureStage(NamedTuple):
    kind: Literal["torch", "warp"]  # whose kernels
    run: Callable[[], object]


def _capture_obstacle(device: torch.device) -> str | None:
    """Returns why steps cannot be captured on this device; None if they can."""
    if device.type != "cuda":
        return f"{device} has no CUDA graphs"
    if not wp.is_conditional_graph_supported():
        return "the solver's loop needs conditional graph nodes: a driver for CUDA 12.4 or later"
    if not wp.is_mempool_enabled(wp.device_from_torch(device)):
        return "warp's memory pool is off, without which it cannot allocate in a capture"
    return None


class CapturedStages:
    """Holds the stages, each captured; calling it replays them in order on torch's current stream.

    Capturing runs every stage some times first: what they change must not matter yet. It waits for
    the device; a replay does not. It takes turns with all captures of the process, on the stream
    of a `Pool`. `unrolled`: whether that is a green one, so that the solver does not loop.
    """

    def __init__(self, stages: list[CaptureStage], world: WarpWorld) -> None:
        self._device = world.device
        self._launches: list[Callable[[], None]] = []
        pool = Pool(self._device)
        self.unrolled = is_green(pool.stream.cuda_stream)
        with pool.at_work(), world.solver_unrolled() if self.unrolled else nullcontext():
            for _ in range(_WARM_UP):
                for stage in stages:
                    with world.on_torch_stream() if stage.kind == "warp" else nullcontext():
                        stage.run()
            pool.wait()
            for stage in stages:
                if stage.kind == "torch":
                    graph = Graph(stage.run, self._device, warm_up=0, pool=pool)
                    self._launches.append(graph)
                else:
                    with (
                        world.on_torch_stream() as warp_stream,
                        wp.ScopedCapture(stream=warp_stream) as capture,
                    ):
                        stage.run()
                    self._launches.append(partial(self._launch, capture.graph))
            pool.wait()

    def __call__(self) -> None:
        for launch in self._launches:
            launch()

    def _launch(self, graph: Any) -> None:
        wp.capture_launch(graph, stream=stream_of_torch(self._device))


class WarpVecEnv(DeviceVecEnv):
    """Is a DeviceVecEnv that, on CUDA, captures its step when it is made.

    A captured step is a replay of graphs and does not wait for the device. `reset` does, and so
    does a step that is not captured: outside of a capture the solver's loop asks after every round
    who has converged. Memory: a Data of mujoco_warp for N worlds, most of it contacts and
    constraint rows.
    """

    def __init__(self, spec: VecEnvSpec) -> None:
        options, model, device = prepare(WARP_OPTIONS, spec)
        if options.solver_iterations is not None:
            model.opt.iterations = options.solver_iterations
        self._warp = WarpWorld(
            model, spec.num_env, device, nconmax=options.nconmax, njmax=options.njmax
        )
        super().__init__(spec, self._warp, model, options)
        if options.capture and device.type == "cuda":
            self._replay = self._capture()

    @torch.no_grad()
    def _capture(self) -> CapturedStages | None:
        obstacle = _capture_obstacle(self.device)
        if obstacle is not None:
            _log.warning("%s: steps are not captured: %s. They run slowly.", self.env_id, obstacle)
            return None
        stages = [
            CaptureStage("warp", self._physics),
            CaptureStage("torch", self._conclude),
            CaptureStage("warp", self._settle),
            CaptureStage("torch", self._begin),
        ]
        replay = CapturedStages(stages if self._derived else [*stages[:2], stages[3]], self._warp)
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
