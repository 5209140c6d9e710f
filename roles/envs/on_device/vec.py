"""Steps N environments of a MuJoCo task as one on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import mujoco  # type: ignore[import-untyped]
import torch
from torch import Tensor

from gmi_drl.roles.envs.adapters import time_limit
from gmi_drl.roles.envs.counter_rng import splitmix64, stream_keys
from gmi_drl.roles.envs.errors import EnvActionError, EnvSpecError, EnvStateError
from gmi_drl.roles.envs.mujoco.vec import box_spaces, load_model
from gmi_drl.roles.envs.options import parse_options
from gmi_drl.roles.envs.protocol import Step, VecEnvSpec

from .arrays import CounterGenerator, TorchArrays
from .counters import FaultCounters
from .tasks import DEVICE_TASKS

_MOST = 1e10  # MuJoCo's mjMAXVAL: a state beyond it counts as unstable, as does one not finite
_CLEARED = ("ctrl", "qacc_warmstart", "cfrc_ext")  # by mj_resetData; the rest is computed anew


class World(Protocol):
    """Holds the state of N worlds of one MuJoCo model.

    Fields are attributes, names and layouts as in MjData: `world.qpos` is [N, nq], `world.xpos`
    [N, nbody, 3], float32 on `device`. A field is the same tensor for good; what is written into
    `qpos`, `qvel`, `act`, `ctrl` or `qacc_warmstart` is what the next `step` reads.

    Derived fields (xpos, cinert, cvel, cfrc_ext, ...) belong to the last dynamics that were
    computed, not to a qpos written or integrated since: call `forward` after writing qpos and qvel.
    """

    num_world: int
    device: torch.device
    room: str  # how many contacts it has room for, and the remedy, for the log

    def __getattr__(self, name: str) -> Tensor: ...

    def step(self, frame_skip: int, rne_post: bool) -> None:
        """Takes `frame_skip` physics steps; `rne_post` computes cfrc_ext after them."""

    def forward(self) -> None:
        """Computes derived fields and qacc of the present qpos, qvel and ctrl, of all worlds."""

    def dropped(self) -> Tensor:
        """Returns the worlds [N] whose contacts or rows did not all fit since last asked."""

    def on_torch_stream(self) -> AbstractContextManager[Any]:
        """Surrounds `step` and `forward`; nothing of torch runs within.

        They run behind what torch has launched so far, and before what it launches next.
        """


def prepare(
    kinds: Mapping[str, type[Any]], spec: VecEnvSpec
) -> tuple[Any, mujoco.MjModel, torch.device]:
    """Returns the options, of the dataclass in `kinds`, the model, and the device with its index.

    Raises EnvSpecError with every fault.
    """
    env_id, device = spec.env_id, spec.device
    options, faults = parse_options(kinds[env_id], spec.options, f"env {env_id}")
    if device.type not in ("cpu", "cuda"):
        faults.append(
            f"env {env_id}: device={device}; {options.adapter} runs on cpu and cuda. Use one of "
            "these."
        )
    if faults:
        raise EnvSpecError(*faults)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return options, load_model(options), device


class DeviceVecEnv:
    """Is a batch like MujocoVecEnv, in float32 and with the physics of `world`.

    Random draws are functions of (seed + i, number of the episode): a batch split over GMIs, or
    stepped by another adapter, starts the same episodes. All tensors of `Step` stay where they are
    and are written anew by every step; nothing here waits for a GPU but `reset`, state_dict and the
    counts. On the CPU the same code runs operation by operation.

    A world that becomes unstable ends its episode: terminated, reward 0, the observation before as
    the final one. `unstable_steps` and `dropped_steps` count (reading them waits for the device).
    """

    def __init__(self, spec: VecEnvSpec, world: World, model: mujoco.MjModel, options: Any) -> None:
        """Takes the worlds of `model` and the id's options, parsed."""
        env_id = spec.env_id
        self.env_id, self.num_env, self.device = env_id, world.num_world, world.device
        # The tasks' annotations say NumPy; with TorchArrays they compute with tensors.
        task: Any = DEVICE_TASKS[env_id]
        self._limit = time_limit(env_id, spec.max_episode_steps) or task.max_episode_steps
        self.max_episode_steps: int | None = self._limit
        self._adapter = options.adapter
        self._frame_skip = options.frame_skip
        self._world = world
        self._task: Any = task(model, options, TorchArrays(self.device))
        views = self._task.views(world)
        self._fields: dict[str, Tensor] = {k: v.flatten(1) for k, v in views.items()}
        self._memory = torch.zeros(self.num_env, self._task.memory_size, device=self.device)
        self._derived = not self._fields.keys() <= {"qpos", "qvel"}
        self._fields["memory"] = self._memory
        self._cleared = [getattr(world, name) for name in _CLEARED]
        self._saved = ["qpos", "qvel", "qacc_warmstart"]
        if model.na:
            self._cleared.append(world.act)
            self._saved.append("act")
        size, dtype = self._task.observation_size, spec.dtype
        self.observation_space, self.action_space = box_spaces(size, dtype, model)
        self._buffers(dtype)
        self._key = stream_keys(spec.seed, self.num_env, self.device)
        self._counters = FaultCounters(env_id, world.room, self.device)
        self._replay: Callable[[], None] | None = None  # all of a step, where it can be captured

    def _buffers(self, dtype: torch.dtype) -> None:
        n, size, device = self.num_env, self._task.observation_size, self.device
        self._step = Step(
            observation=torch.zeros(n, size, dtype=dtype, device=device),
            reward=torch.zeros(n, dtype=dtype, device=device),
            terminated=torch.zeros(n, dtype=torch.bool, device=device),
            truncated=torch.zeros(n, dtype=torch.bool, device=device),
            final_observation=torch.zeros(n, size, dtype=dtype, device=device),
        )
        self._done = torch.zeros(n, dtype=torch.bool, device=device)
        self._elapsed = torch.zeros(n, dtype=torch.int64, device=device)
        self._count = torch.zeros(n, dtype=torch.int64, device=device)  # of first states
        self._before: Tensor = self._task.position(self._fields).clone()

    @torch.no_grad()
    def reset(self, seed: int | None = None) -> Tensor:
        if seed is not None:
            self._key.copy_(stream_keys(seed, self.num_env, self.device))
            self._count.zero_()
        self._done.fill_(True)
        self._restart()
        with self._world.on_torch_stream():
            self._settle()
        self._begin()
        return self._step.observation

    @torch.no_grad()
    def step(self, action: Tensor) -> Step:
        self._world.ctrl.copy_(self._checked(action))
        if self._replay is not None:
            self._replay()
        else:
            self._run()
        self._counters.poll()
        return self._step

    def _run(self) -> None:
        """Makes one step, operation by operation; on the CPU without what no environment needs."""
        with self._world.on_torch_stream():
            self._physics()
        skip = self.device.type == "cpu"
        self._conclude(only_if_done=skip)
        if skip and not bool(self._done.any()):
            self._step.observation.copy_(self._step.final_observation)
            return
        with self._world.on_torch_stream():
            self._settle()
        self._begin()

    # The four stages of a step: launches only, all results in buffers that stay where they are.

    def _physics(self) -> None:
        self._world.step(self._frame_skip, self._task.rne_post)

    def _conclude(self, only_if_done: bool = False) -> None:
        """Observes and judges what physics led to, and begins new episodes where one ended."""
        world, f, out = self._world, self._fields, self._step
        unstable = ~torch.cat([world.qpos, world.qvel, world.qacc], 1).abs().le(_MOST).all(1)
        reward, terminated = self._task.evaluate(f, self._before, world.ctrl)
        self._resample()
        self._task.observe(f, out.final_observation)
        out.final_observation.copy_(
            torch.where(unstable[:, None], out.observation, out.final_observation)
        )
        out.reward.copy_(reward)
        out.reward.masked_fill_(unstable, 0)  # torch.where would copy a scalar from the host
        out.terminated.copy_(terminated | unstable)
        self._elapsed += 1
        out.truncated.copy_(self._elapsed >= self._limit)
        self._done.copy_(out.terminated | out.truncated)
        # Positions that lag one time step behind qpos, as Gymnasium's do after mj_step.
        self._before.copy_(self._task.position(f))
        self._counters.add(unstable, world.dropped())
        if not only_if_done or bool(self._done.any()):
            self._restart()

    def _resample(self) -> None:
        """Samples memory anew where the task asks for it, by numbers of episode and step."""
        mask = self._task.resample_mask(self._fields)
        if mask is not None:
            draws = CounterGenerator(splitmix64(self._key + self._count), self._elapsed)
            sampled = self._task.sample_memory(draws)
            self._memory.copy_(torch.where(mask[:, None], sampled, self._memory))

    def _restart(self) -> None:
        """Writes first states where done; all other worlds keep theirs."""
        done, world = self._done, self._world
        draws = CounterGenerator(self._key, self._count)
        qpos, qvel = self._task.first_state(draws)
        world.qpos.copy_(torch.where(done[:, None], qpos, world.qpos))
        world.qvel.copy_(torch.where(done[:, None], qvel, world.qvel))
        if self._task.memory_size:
            sampled = self._task.sample_memory(draws)
            self._memory.copy_(torch.where(done[:, None], sampled, self._memory))
        for field in self._cleared:
            field.masked_fill_(done.view(-1, *[1] * (field.dim() - 1)), 0)
        if (activation := self._task.first_activation(qpos)) is not None:
            world.act.copy_(torch.where(done[:, None], activation, world.act))
        self._count += done
        self._elapsed.masked_fill_(done, 0)

    def _settle(self) -> None:
        """Does mj_forward for the worlds that were restarted.

        The others are not changed in anything that the next step reads: what lags has been taken.
        """
        if self._derived:
            self._world.forward()

    def _begin(self) -> None:
        """Observes where an episode began; elsewhere the observation is the final one."""
        world, f, out, done = self._world, self._fields, self._step, self._done
        self._task.observe(f, out.observation)
        out.observation.copy_(torch.where(done[:, None], out.observation, out.final_observation))
        self._before.copy_(torch.where(done[:, None], self._task.position(f), self._before))
        if self._derived:  # mj_forward leaves its solution as the solver's next first guess
            warm = world.qacc_warmstart
            warm.copy_(torch.where(done[:, None], world.qacc, warm))

    def _checked(self, action: Tensor) -> Tensor:
        """Returns the action, refused where it cannot be; on a GPU its values are not looked at."""
        shape = tuple(self._world.ctrl.shape)
        if tuple(action.shape) != shape:
            raise EnvActionError.of_shape(self.env_id, action.shape, shape)
        if self.device.type == "cpu" and not bool(torch.isfinite(action).all()):
            raise EnvActionError.not_finite(self.env_id, action)
        return action

    @property
    def unstable_steps(self) -> int:
        return int(self._counters.on_device[0])

    @property
    def dropped_steps(self) -> int:
        """Counts the environment steps in which contacts or constraint rows did not fit."""
        return int(self._counters.on_device[1])

    def state_dict(self) -> dict[str, Any]:
        return {
            "env_id": self.env_id,
            "physics": {name: getattr(self._world, name).clone() for name in self._saved},
            **{name: tensor.clone() for name, tensor in self._state().items()},
            "counts": self._counters.on_device.tolist(),
        }

    def _state(self) -> dict[str, Tensor]:
        """Returns what is saved beside physics."""
        return {
            "before": self._before, "memory": self._memory, "elapsed": self._elapsed,
            "key": self._key, "count": self._count, "observation": self._step.observation,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = state.get("physics")
        if state["env_id"] != self.env_id or not isinstance(saved, dict):
            raise EnvStateError(
                f"saved environments are {state['env_id']}, these are {self.env_id} of adapter "
                f"{self._adapter}. Set env.id and env.adapter as saved."
            )
        if saved["qpos"].shape != self._world.qpos.shape:
            raise EnvStateError(
                f"saved qpos is {list(saved['qpos'].shape)}, these environments have "
                f"{list(self._world.qpos.shape)}. Set num_env={len(saved['qpos'])} and the same "
                "model."
            )
        for name in self._saved:
            getattr(self._world, name).copy_(saved[name])
        for name, tensor in self._state().items():
            tensor.copy_(state[name])
        self._counters.load(state["counts"])

    def close(self) -> None:
        """Does nothing: the memory goes with the object."""
