"""N environments of a MuJoCo task, stepped as a batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import mujoco  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import Tensor

from gmi_drl.roles.envs.buffers import HostBuffers, checked_action, not_finite_action
from gmi_drl.roles.envs.errors import EnvSpecError, EnvStateError, UnstableSimulation
from gmi_drl.roles.envs.options import parse_options
from gmi_drl.roles.envs.protocol import Step
from gmi_drl.roles.envs.seeding import load_streams, save_streams, streams

from .pool import PhysicsPool
from .task import INTEGRATORS, Array, Task, TaskOptions

_log = logging.getLogger(__name__)
_INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
_WARNINGS = {
    int(mujoco.mjtWarning.mjWARN_BADQPOS): "bad qpos",
    int(mujoco.mjtWarning.mjWARN_BADQVEL): "bad qvel",
    int(mujoco.mjtWarning.mjWARN_BADQACC): "bad qacc",
}
_BAD_CTRL = int(mujoco.mjtWarning.mjWARN_BADCTRL)


class MujocoVecEnv:
    """A batch equal to N single environments (Gymnasium's, where it has the task), seeded seed,
    seed + 1, ..., seed + N - 1.

    Physics and rewards are float64; `dtype` is what observations and rewards are handed over in.
    `threads` counts the caller's. Memory: some 0.5 MB per environment (one MjData each).

    A simulation that blows up is reset by MuJoCo in mid-step, and Gymnasium trains on from there
    as if nothing had been. Here the episode ends: with `on_unstable: terminate` that step is
    terminated, pays 0, keeps the observation before it as the final one, and is logged and counted
    in `unstable_steps`; with `on_unstable: raise` it is an UnstableSimulation error.
    """

    def __init__(
        self,
        env_id: str,
        task_type: type[Task[Any]],
        num_env: int,
        *,
        options: Mapping[str, Any],
        max_episode_steps: int | None,
        device: torch.device,
        seed: int,
        threads: int,
        dtype: torch.dtype,
    ) -> None:
        parsed, faults = parse_options(task_type.Options, options, f"env {env_id}")
        faults += parsed.faults(f"env {env_id}")
        if faults:
            raise EnvSpecError(faults)
        self.env_id, self.num_env, self.device = env_id, num_env, device
        self.max_episode_steps = max_episode_steps
        self.unstable_steps = 0
        self._raise_unstable = parsed.on_unstable == "raise"
        self._model = load_model(parsed)
        self._task = task_type(self._model, parsed)
        self._datas = [mujoco.MjData(self._model) for _ in range(num_env)]
        self._bind()
        self._spaces(dtype)
        self._buffers = HostBuffers(
            num_env, (self._task.observation_size,), dtype, dtype, self.device
        )
        self._elapsed = np.zeros(num_env, dtype=np.int64)
        self._streams = streams(seed, num_env)
        self._pool = PhysicsPool(
            self._model, self._datas, parsed.frame_skip, self._task.rne_post, threads
        )

    def _bind(self) -> None:
        """Views into every MjData, and the batch arrays they are gathered into.

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

    def _spaces(self, dtype: torch.dtype) -> None:
        shape = (self._task.observation_size,)
        numpy_dtype = np.float64 if dtype == torch.float64 else np.float32
        self.observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(
            -np.inf, np.inf, shape, numpy_dtype
        )
        low, high = self._model.actuator_ctrlrange.copy().astype(np.float32).T
        self.action_space: gymnasium.Space[Any] = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def reset(self, seed: int | None = None) -> Tensor:
        if seed is not None:
            self._streams = streams(seed, self.num_env)
        for i in range(self.num_env):
            self._start_episode(i)
        self._gather()
        self._before = self._task.position(self._fields)
        self._task.observe(self._fields, self._buffers.observation)
        return self._buffers.publish_reset()

    def step(self, action: Tensor) -> Step:
        np.copyto(self._action, checked_action(action, self._action.shape))
        for ctrl, row in zip(self._ctrl, self._action, strict=True):
            ctrl[:] = row
        self._pool.step()
        self._gather()
        np.concatenate(self._warning_views, out=self._warnings_flat)
        b = self._buffers
        unstable = self._warnings.any() and self._find_unstable()
        if unstable:
            kept = {i: b.observation[i].copy() for i in unstable}
        reward, terminated = self._task.evaluate(self._fields, self._before, self._action)
        if self._task.memory_size:
            self._renew()
        self._before = self._task.position(self._fields)
        self._task.observe(self._fields, b.observation)
        b.reward[:] = reward
        b.terminated[:] = terminated
        if unstable:
            for i, observation in kept.items():
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

    def _renew(self) -> None:
        outdated = self._task.outdated(self._fields)
        for i in [] if outdated is None else np.flatnonzero(outdated):
            self._memory[i] = self._task.draw_memory(self._streams[i])

    def _start_episode(self, i: int) -> None:
        data = self._datas[i]
        mujoco.mj_resetData(self._model, data)
        data.qpos[:], data.qvel[:] = self._task.first_state(self._streams[i])
        if self._task.memory_size:
            self._memory[i] = self._task.draw_memory(self._streams[i])
        mujoco.mj_forward(self._model, data)
        self._elapsed[i] = 0

    def _restart(self, rows: np.ndarray[Any, np.dtype[np.intp]]) -> None:
        """New episodes in `rows`: only theirs of the batch arrays are written."""
        for i in rows:
            self._start_episode(i)
            for name, views in self._views.items():
                self._fields[name][i] = views[i]
        part = {name: field[rows] for name, field in self._fields.items()}
        self._before[rows] = self._task.position(part)
        observation = np.empty((len(rows), self._task.observation_size))
        self._task.observe(part, observation)
        self._buffers.observation[rows] = observation

    def _find_unstable(self) -> list[int]:
        """Environments that MuJoCo reset in this step. Their counters are cleared by our reset."""
        if self._warnings[:, _BAD_CTRL].any():
            raise not_finite_action(f"env {self.env_id}", self._action)
        found = np.flatnonzero(self._warnings[:, list(_WARNINGS)].any(1)).tolist()
        for i in found:
            name = next(name for k, name in _WARNINGS.items() if self._warnings[i, k])
            error = UnstableSimulation(self.env_id, i, int(self._elapsed[i]) + 1, name)
            if self._raise_unstable:
                raise error
            self.unstable_steps += 1
            if self.unstable_steps & (self.unstable_steps - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
                _log.warning("%s Episode ended (%d so far).", error, self.unstable_steps)
        return found

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
            "streams": save_streams(self._streams),
            "observation": torch.from_numpy(self._buffers.observation.copy()),
            "unstable_steps": self.unstable_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        size = mujoco.mj_stateSize(self._model, _INTEGRATION)
        for name, ours in (("env_id", self.env_id), ("mujoco", mujoco.__version__)):
            if state[name] != ours:
                raise EnvStateError(
                    f"saved environments have {name} {state[name]}, these {ours}: their "
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
        load_streams(self._streams, state["streams"])
        self._buffers.observation[:] = state["observation"].numpy()
        self.unstable_steps = state["unstable_steps"]

    def close(self) -> None:
        self._pool.close()


def load_model(options: TaskOptions) -> mujoco.MjModel:
    """The compiled model of a task; a plain file name is one of Gymnasium's assets."""
    name = options.xml_file
    if name.startswith(("/", ".", "~")):
        path = Path(name).expanduser()
    else:
        path = Path(gymnasium.__file__).parent / "envs/mujoco/assets" / name
    if not path.is_file():
        raise EnvSpecError(
            [
                f"xml_file={name}: no file {path}. Give a path that starts with / or ./ or ~, "
                "or the name of one of Gymnasium's MuJoCo models."
            ]
        )
    model = options.compile(path)
    if options.integrator is not None:
        model.opt.integrator = INTEGRATORS[options.integrator]
    return model


def _on_mujoco_warning(message: str) -> None:
    # Blow-ups are reported by MujocoVecEnv with the environment's index, and old elements of
    # Gymnasium's own models are nobody's business here.
    known = "simulation is unstable" in message or "is deprecated" in message
    _log.log(logging.DEBUG if known else logging.WARNING, "MuJoCo: %s", message)


# Without a handler MuJoCo writes every warning to MUJOCO_LOG.TXT in the current folder.
if mujoco.get_mju_user_warning() is None:
    mujoco.set_mju_user_warning(_on_mujoco_warning)
