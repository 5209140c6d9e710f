"""Steps N copies of one MuJoCo model on a device by mujoco_warp, as torch tensors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mujoco  # type: ignore[import-untyped]
import torch
import warp as wp
from torch import Tensor

from gmi_drl.roles.envs.errors import EnvSpecError

from .capacity import Capacity, capacity

# Before mujoco_warp, whose import may start warp: no banner, and no line for every kernel loaded.
if wp.config.log_level == wp.LOG_INFO:
    wp.config.log_level = wp.LOG_WARNING

import mujoco_warp as mjw  # type: ignore[import-untyped]

# warp has one current stream for a device, not one for each thread: GMIs that are threads of one
# process take turns. Replays of graphs name their stream and do not.
_CURRENT_STREAM = threading.RLock()
# Device and handle of a torch stream -> warp's object for it. Kept, as the first object that goes
# would have warp forget the stream for all others.
_STREAMS: dict[tuple[int, int], Any] = {}

# What mujoco_warp drops when there is no room, and says in `Data.overflow`. Its other bits are
# about iteration limits, where nothing is lost.
_DROPPED = (
    mjw.OverflowType.NEFC
    | mjw.OverflowType.NJMAX_NNZ
    | mjw.OverflowType.BROADPHASE
    | mjw.OverflowType.NARROWPHASE
    | mjw.OverflowType.CCD
    | mjw.OverflowType.HFIELD
)


def stream_of_torch(device: torch.device) -> Any:
    """Returns torch's current stream of a CUDA device, as warp knows it."""
    stream = torch.cuda.current_stream(device)
    key = (stream.device_index, stream.cuda_stream)
    warp_stream = _STREAMS.get(key)
    if warp_stream is None:
        make: Any = wp.stream_from_torch
        warp_stream = _STREAMS[key] = make(stream)
    return warp_stream


class WarpWorld:
    """Is a `World` whose fields are torch views of warp's memory, that of mujoco_warp's Data.

    On CUDA everything runs on torch's current stream. `step` and `forward` wait for the device when
    they are not captured, as the solver then asks who has converged.

    A model with MuJoCo's PGS solver, which mujoco_warp has not, is solved by Newton's.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        num_world: int,
        device: torch.device,
        *,
        nconmax: int | None = None,
        njmax: int | None = None,
    ) -> None:
        if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        self.num_world, self.device = num_world, device
        wp.init()  # type: ignore[no-untyped-call]
        self.warp_device = wp.device_from_torch(device)
        with wp.ScopedDevice(self.warp_device):
            try:
                self._model = mjw.put_model(model)
            except (NotImplementedError, ValueError) as error:
                raise EnvSpecError(
                    f"mujoco_warp cannot simulate this model: {error} Use adapter: mujoco, or "
                    "take that out of the model."
                ) from error
            self._model.opt.warn_overflow = 0  # it would print from the kernel, for every world
            rule = capacity(model, self._model.nxn_geom_pair_filtered.numpy())
            self.capacity = Capacity(nconmax or rule.nconmax, njmax or rule.njmax)
            self._data = mjw.make_data(
                model, num_world, nconmax=self.capacity.nconmax, njmax=self.capacity.njmax
            )
        self.room = (
            f"nconmax={self.capacity.nconmax}, njmax={self.capacity.njmax}. Set "
            "env.options.nconmax and njmax higher."
        )
        wp.synchronize_device(self.warp_device)  # made on warp's stream, used on torch's
        self._views: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Tensor:
        """Returns a torch view of the field `name` of Data."""
        if name.startswith("_"):
            raise AttributeError(name)
        views = self._views
        if name not in views:
            views[name] = wp.to_torch(getattr(self._data, name), requires_grad=False)
        return views[name]

    def step(self, frame_skip: int, rne_post: bool) -> None:
        for _ in range(frame_skip):
            mjw.step(self._model, self._data)
        if rne_post:
            mjw.rne_postconstraint(self._model, self._data)

    def forward(self) -> None:
        mjw.forward(self._model, self._data)

    def dropped(self) -> Tensor:
        dropped: Tensor = (self.overflow & int(_DROPPED)) != 0
        self.overflow.zero_()
        return dropped

    @property
    def solver_iterations(self) -> int:
        """Returns the iterations of the constraint solver, at most."""
        return int(self._model.opt.iterations)

    @contextmanager
    def solver_unrolled(self) -> Iterator[None]:
        """Has the solver launch all its iterations within, whoever has converged.

        Worlds that have are left as they are, so that the results are the same.
        """
        option = self._model.opt
        conditional, option.graph_conditional = option.graph_conditional, False
        try:
            yield
        finally:
            option.graph_conditional = conditional

    @contextmanager
    def on_torch_stream(self) -> Iterator[Any]:
        """Runs warp's kernels on torch's current stream within; gives that stream (None: CPU)."""
        with _CURRENT_STREAM:
            if not self.warp_device.is_cuda:
                with wp.ScopedDevice(self.warp_device):
                    yield None
                return
            stream = stream_of_torch(self.device)
            with wp.ScopedStream(stream, sync_enter=False):
                yield stream
