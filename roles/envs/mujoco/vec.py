"""Steps N environments of a MuJoCo task as a batch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium
import mujoco  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import Tensor

from gmi_drl.roles.envs.adapters import time_limit
from gmi_drl.roles.envs.buffers import HostBuffers, checked_action
from gmi_drl.roles.envs.errors import (
    EnvActionError,
    EnvSpecError,
    EnvStateError,
    UnstableSimulation,
)
from gmi_drl.roles.envs.options import checked_options
from gmi_drl.roles.envs.protocol import Step, VecEnvSpec

from .pool import PhysicsPool
from .task import INTEGRATORS, Array, PhysicsTaskOptions, Task
from .tasks import TASKS

_log = logging.getLogger(__name__)
_INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
_WARNINGS = {
    int(mujoco.mjtWarning.mjWARN_BADQPOS): "bad qpos",
    int(mujoco.mjtWarning.mjWARN_BADQVEL): "bad qvel",
    int(mujoco.mjtWarning.mjWARN_BADQACC): "bad qacc",
}
_WORD = (1 << 64) - 1
_BAD_CTRL = int(mujoco.mjtWarning.mjWARN_BADCTRL)


class MujocoVecEnv:
    """Equals N single environments (Gymnasium's, where it has the task), seeded seed + i.

    Physics and rewards are float64; `dtype` is what observations and rewards are handed over in.
    `threads` counts the caller's. Memory: some 0.5 MB per environment (one MjData each).

    A simulation that blows up is reset by MuJoCo in mid-step, and Gymnasium trains on from there
    as if nothing had been. Here the episode ends: with `on_unstable: terminate` that step is
    terminated, pays 0, keeps the observation before it as the final one, and is logged and counted
    in `unstable_steps`; with `on_unstable: raise` it is an UnstableSimulation error.
    """

    def __init__(self, spec: VecEnvSpec, task_type: type[Task[Any]] | None = None) -> None:
        """Makes environments of `task_type`; None: of the task of the id."""
        env_id, num_env = spec.env_id, spec.num_env
        task_type = task_type or TASKS[env_id]
        options: PhysicsTaskOptions = checked_options(task_type.Options, env_id, spec.options)
        self.env_id, self.num_env, self.device = env_id, num_env, spec.device
        limit = time_limit(env_id, spec.max_episode_steps) or task_type.max_episode_steps
        self.max_episode_steps: int | None = limit or None
        self.unstable_steps = 0
        self._raise_unstable = options.on_unstable == "raise"
        self._model = load_model(options)
        self._task = task_type(self._model, options)
        self._datas = [mujoco.MjData(self._model) for _ in range(num_env)]
        self._bind()
        size, dtype = self._task.observation_size, spec.dtype
        self.observation_space, self.action_space = box_spaces(size, dtype, self._model)
        self._buffers = HostBuffers(num_env, (size,), dtype, dtype, self.device)
        self._elapsed = np.zeros(num_env, dtype=np.int64)
        self._generators = _seeded(spec.seed, num_env)
        self._pool = PhysicsPool(
            self._model, self._datas, options.frame_skip, self._task.rne_post, spec.threads
        )

    def _bind(self) -> None:
        """Makes views into every MjData, and the batch arrays they are gathered into.

        One np.concatenate per field copies all N views in C (90 ns each); the fields are
        the flat output's rows.
        """
        views = [self._task.views(d) for d in self._datas]
        self._views = {name: [v[name].reshape(-1) for v in views] for name in views[0]}
        self._flat = {name: np.zeros(len(v) * v[0].size) for name, v in self._views.items()}
        n = self.num_env
        self._fields: dict[str, Array] = {k: v.reshape(n, -1) for k, v in self._flat.items()}
        self._memory = np.zeros((n, self._task.memory_size))
        if self._task.memory_size:
            self._fields["memory"] = self._memory
        self._before = self._task.position(self._fields)
        self._ctrl = [d.ctrl for d in self._datas]
        self._action = np.zeros((n, self._model.nu))
        self._warning_views = [d.warning.number for d in self._datas]
        self._warnings = np.zeros((n, len(self._warning_views[0])), dtype=np.int32)
        self._warnings_flat = self._warnings.reshape(-1)

    def reset(self, seed: int | None = None) -> Tensor:
        if seed is not None:
            self._generators = _seeded(seed, self.num_env)
        for i in range(self.num_env):
            self._start_episode(i)
        self._gather()
        self._before = self._task.position(self._fields)
        self._task.observe(self._fields, self._buffers.observation)
        return self._buffers.publish_reset()

    def step(self, action: Tensor) -> Step:
        np.copyto(self._action, checked_action(self.env_id, action, self._action.shape))
        for ctrl, row in zip(self._ctrl, self._action, strict=True):
            ctrl[:] = row
        self._pool.step()
        self._gather()
        np.concatenate(self._warning_views, out=self._warnings_flat)
        b = self._buffers
        unstable = self._warnings.any() and self._find_unstable()
        if unstable:
            saved = {i: b.observation[i].copy() for i in unstable}
        reward, terminated = self._task.evaluate(self._fields, self._before, self._action)
        if self._task.memory_size:
            self._resample()
        self._before = self._task.position(self._fields)
        self._task.observe(self._fields, b.observation)
        b.reward[:] = reward
        b.terminated[:] = terminated
        if unstable:
            for i, observation in saved.items():
                b.observation[i], b.reward[i], b.terminated[i] = observation, 0, True
        self._elapsed += 1
        if self.max_episode_steps is not None:
            np.greater_equal(self._elapsed, self.max_episode_steps, out=b.truncated)
        done = np.flatnonzero(b.terminated | b.truncated)
        if done.size:
            np.copyto(b.final_observation, b.observation)
            self._restart(done)
        return b.publish(bool(done.size))

    def _gather(self) -> None:
        for name, views in self._views.items():
            np.concatenate(views, out=self._flat[name])

    def _resample(self) -> None:
        mask = self._task.resample_mask(self._fields)
        for i in [] if mask is None else np.flatnonzero(mask):
            self._memory[i] = self._task.sample_memory(self._generators[i])

    def _start_episode(self, i: int) -> None:
        data = self._datas[i]
        mujoco.mj_resetData(self._model, data)
        data.qpos[:], data.qvel[:] = self._task.first_state(self._generators[i])
        if (activation := self._task.first_activation(data.qpos)) is not None:
            data.act[:] = activation
        if self._task.memory_size:
            self._memory[i] = self._task.sample_memory(self._generators[i])
        mujoco.mj_forward(self._model, data)
        self._elapsed[i] = 0

    def _restart(self, rows: np.ndarray[Any, np.dtype[np.intp]]) -> None:
        """Begins new episodes in `rows`, and writes only these of the batch arrays."""
        for i in rows:
            self._start_episode(i)
            for name, views in self._views.items():
                self._fields[name][i] = views[i]
        restarted = {name: field[rows] for name, field in self._fields.items()}
        self._before[rows] = self._task.position(restarted)
        observation = np.empty((len(rows), self._task.observation_size))
        self._task.observe(restarted, observation)
        self._buffers.observation[rows] = observation

    def _find_unstable(self) -> list[int]:
        """Returns the environments that MuJoCo reset in this step."""
        if self._warnings[:, _BAD_CTRL].any():
            raise EnvActionError.not_finite(self.env_id, self._action)
        bad = self._warnings[:, list(_WARNINGS)].any(1)
        unstable: list[int] = np.flatnonzero(bad).tolist()
        for i in unstable:
            name = next(name for k, name in _WARNINGS.items() if self._warnings[i, k])
            error = UnstableSimulation(self.env_id, i, int(self._elapsed[i]) + 1, name)
            if self._raise_unstable:
                raise error
            self.unstable_steps += 1
            if self.unstable_steps & (self.unstable_steps - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
                _log.warning("%s Episode ended (%d so far).", error, self.unstable_steps)
        return unstable

    def state_dict(self) -> dict[str, Any]:
        size = mujoco.mj_stateSize(self._model, _INTEGRATION)
        physics = np.empty((self.num_env, size))
        for data, row in zip(self._datas, physics, strict=True):
            mujoco.mj_getState(self._model, data, row, _INTEGRATION)
        return {
            "env_id": self.env_id,
            "mujoco": mujoco.__version__,
            "physics": torch.from_numpy(physics),  # [N, size], solver warm start included
            "before": torch.from_numpy(self._before.copy()),
            "memory": torch.from_numpy(self._memory.copy()),
            "elapsed": torch.from_numpy(self._elapsed.copy()),
            "streams": _saved(self._generators),
            "observation": torch.from_numpy(self._buffers.observation.copy()),
            "unstable_steps": self.unstable_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        size = mujoco.mj_stateSize(self._model, _INTEGRATION)
        for name, current in (("env_id", self.env_id), ("mujoco", mujoco.__version__)):
            if state[name] != current:
                raise EnvStateError(
                    f"saved environments have {name} {state[name]}, these {current}: their "
                    f"trajectories would differ. Go on with {name} {state[name]}, or start anew."
                )
        if tuple(state["physics"].shape) != (self.num_env, size):
            raise EnvStateError(
                f"saved physics is {list(state['physics'].shape)}, these environments need "
                f"{[self.num_env, size]}. Set num_env={len(state['physics'])} and the same model."
            )
        for data, row in zip(self._datas, state["physics"].numpy(), strict=True):
            mujoco.mj_resetData(self._model, data)
            mujoco.mj_setState(self._model, data, row, _INTEGRATION)
        self._before = state["before"].numpy().copy()
        if self._task.memory_size:
            self._memory[:] = state["memory"].numpy()
        self._elapsed[:] = state["elapsed"].numpy()
        _restore(self._generators, state["streams"])
        self._buffers.observation[:] = state["observation"].numpy()
        self.unstable_steps = state["unstable_steps"]

    def close(self) -> None:
        self._pool.close()


def _seeded(seed: int, num_env: int) -> list[np.random.Generator]:
    """Returns the generator of each environment i, from seed + i (as `gymnasium.vector`'s)."""
    return [np.random.Generator(np.random.PCG64(seed + i)) for i in range(num_env)]


def _saved(generators: list[np.random.Generator]) -> Tensor:
    """Returns [N, 6] int64: both halves of PCG64's state and increment, its spare 32 bits."""
    rows = []
    for generator in generators:
        saved = generator.bit_generator.state
        state, inc = saved["state"]["state"], saved["state"]["inc"]
        words = (state >> 64, state & _WORD, inc >> 64, inc & _WORD)
        rows.append([*words, int(saved["has_uint32"]), int(saved["uinteger"])])
    return torch.from_numpy(np.array(rows, dtype=np.uint64).view(np.int64))


def _restore(generators: list[np.random.Generator], saved: Tensor) -> None:
    for generator, row in zip(generators, saved.numpy().view(np.uint64).tolist(), strict=True):
        generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": row[0] << 64 | row[1], "inc": row[2] << 64 | row[3]},
            "has_uint32": row[4],
            "uinteger": row[5],
        }


def box_spaces(
    observation_size: int, dtype: torch.dtype, model: mujoco.MjModel
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Returns the observation space, of any numbers, and the action space, of the actuators."""
    numpy_dtype = np.float64 if dtype == torch.float64 else np.float32
    low, high = model.actuator_ctrlrange.copy().astype(np.float32).T
    return (
        gymnasium.spaces.Box(-np.inf, np.inf, (observation_size,), numpy_dtype),
        gymnasium.spaces.Box(low, high, dtype=np.float32),
    )


def load_model(options: PhysicsTaskOptions) -> mujoco.MjModel:
    """Returns the compiled model of a task; a plain file name is one of Gymnasium's assets."""
    name = options.xml_file
    if name.startswith(("/", ".", "~")):
        path = Path(name).expanduser()
    else:
        path = Path(gymnasium.__file__).parent / "envs/mujoco/assets" / name
    if not path.is_file():
        raise EnvSpecError(
            f"xml_file={name}: no file {path}. Give a path that starts with / or ./ or ~, "
            "or the name of one of Gymnasium's MuJoCo models."
        )
    model = options.compile(path)
    if options.integrator is not None:
        model.opt.integrator = INTEGRATORS[options.integrator]
    return model


def _on_mujoco_warning(message: str) -> None:
    # Blow-ups are reported by MujocoVecEnv with the environment's index, and old elements of
    # Gymnasium's own models need no warning.
    is_known = "simulation is unstable" in message or "is deprecated" in message
    _log.log(logging.DEBUG if is_known else logging.WARNING, "MuJoCo: %s", message)


# Without a handler MuJoCo writes every warning to MUJOCO_LOG.TXT in the current folder.
if mujoco.get_mju_user_warning() is None:
    mujoco.set_mju_user_warning(_on_mujoco_warning)
