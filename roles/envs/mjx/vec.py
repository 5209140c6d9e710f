"""Steps N environments of a MuJoCo task with MJX's physics, their state in torch tensors.

JAX's arrays never change, torch's do. So nothing of a world is kept in JAX: a step is a function of
five tensors that JAX reads where torch has them (dlpack), and what it returns is copied into
tensors that stay where they are.

On CUDA, dlpack orders the streams by events: JAX waits for torch's current stream before it reads,
torch's current stream waits for JAX's results before they are copied, and with them for all that
JAX has read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mujoco  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.on_device.tasks import MJX_OPTIONS
from gmi_drl.roles.envs.on_device.vec import DeviceVecEnv, prepare
from gmi_drl.roles.envs.protocol import VecEnvSpec

from .start import jax_device

_STATE = ("qpos", "qvel", "act", "qacc_warmstart")  # what a step starts from and writes
_READ = (*_STATE, "ctrl")
_AFTER = ("cfrc_ext", "cfrc_int", "cacc")  # computed by rne_postconstraint alone


class MjxWorld:
    """Is a `World`; all its fields are torch's memory.

    MJX has room for every contact there can be, so nothing is dropped.

    The first `step` and the first `forward` compile, or take what is in JAX's cache. On the CPU
    both return when the results are there. On CUDA they return when all is launched. That takes as
    long as the solver does: XLA asks the device after every round whether its loop goes on.

    A model with MuJoCo's PGS solver, which MJX has not, is solved by Newton's.
    """

    room = "MJX has room for all. Take the numeric max_contact_points out of the model."

    def __init__(self, model: mujoco.MjModel, num_world: int, device: torch.device) -> None:
        if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        self.num_world, self.device = num_world, device
        target = jax_device(device)
        import jax
        from mujoco import mjx

        try:
            # Without impl it would take mujoco_warp on a GPU, which adapter warp runs better.
            self._model = mjx.put_model(model, device=target, impl="jax")
            self._rest = mjx.make_data(model, device=target, impl="jax")
        except (NotImplementedError, ValueError) as error:
            raise EnvSpecError(
                f"MJX cannot simulate this model: {error} Use adapter: mujoco or warp, or take "
                "that out of the model."
            ) from error
        self._jax: Any = jax
        self._mjx: Any = mjx
        self._compute = jax.jit(self._advance, static_argnums=(1, 2, 3))
        self._fields: dict[str, Tensor] = {}
        self._none = torch.zeros(num_world, dtype=torch.bool, device=device)
        self._last: Any = None  # results that torch may still be copying
        for name in (*_READ, "qacc"):
            getattr(self, name)

    def __getattr__(self, name: str) -> Tensor:
        """Returns the tensor of the field `name`, which `step` and `forward` write from now on.

        For that they are compiled anew: ask for all fields before the first of them.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._fields:
            initial = torch.from_numpy(np.array(_field(self._rest, name))).to(self.device)
            self._fields[name] = initial.expand(self.num_world, *initial.shape).clone()
        return self._fields[name]

    def step(self, frame_skip: int, rne_post: bool) -> None:
        skipped = ("ctrl",) if rne_post else ("ctrl", *_AFTER)
        self._run(frame_skip, rne_post, skipped)

    def forward(self) -> None:
        self._run(0, False, (*_READ, *_AFTER))

    def dropped(self) -> Tensor:
        return self._none

    def on_torch_stream(self) -> AbstractContextManager[Any]:
        # dlpack's export takes the current stream of torch's current device.
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _run(self, frame_skip: int, rne_post: bool, skipped: tuple[str, ...]) -> None:
        inputs = {name: self._fields[name] for name in _READ}
        state = {k: self._jax.dlpack.from_dlpack(v) for k, v in inputs.items() if v.numel()}
        names = tuple(k for k, v in sorted(self._fields.items()) if k not in skipped and v.numel())
        # XLA would multiply in TF32 on a GPU, and give positions to three digits.
        with self._jax.default_matmul_precision("highest"):
            results = self._compute(state, frame_skip, rne_post, names)
        if self.device.type == "cpu":
            self._jax.block_until_ready(results)
        for name in names:
            self._fields[name].copy_(from_dlpack(results[name]))
        # Freed only now, behind a launch that waits for their copies: JAX's allocator knows of its
        # own stream only, and could give the memory to another batch.
        self._last = results

    def _advance(
        self, state: dict[str, Any], frame_skip: int, rne_post: bool, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Returns the fields `names` of all worlds after `frame_skip` steps (0: mj_forward)."""

        def one_world(state: dict[str, Any]) -> dict[str, Any]:
            mjx, model = self._mjx, self._model
            data = self._rest.replace(**state)
            if frame_skip:
                data = self._jax.lax.fori_loop(0, frame_skip, lambda _, d: mjx.step(model, d), data)
            else:
                data = mjx.forward(model, data)
            if rne_post:
                data = mjx.rne_postconstraint(model, data)
            return {name: _field(data, name) for name in names}

        fields: dict[str, Any] = self._jax.vmap(one_world)(state)
        return fields


def _field(data: Any, name: str) -> Any:
    """Returns a field of mjx.Data, of which some belong to the implementation."""
    public = {f.name for f in data.fields()}
    return getattr(data if name in public else data._impl, name)


class MjxVecEnv(DeviceVecEnv):
    """Is a DeviceVecEnv over an `MjxWorld`.

    Its first `reset` compiles, for tens of seconds; that of another one of the same size finds it
    in JAX's cache, in this process and in others. One made for its spaces compiles nothing.

    `compiling`, which may be set before the first `reset`, gives what is entered around that.
    """

    compiling: Callable[[], AbstractContextManager[None]]

    def __init__(self, spec: VecEnvSpec) -> None:
        options, model, device = prepare(MJX_OPTIONS, spec)
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
            self._physics()
            self._settle()
