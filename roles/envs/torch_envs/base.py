"""Gives the environments in torch their episodes, time limit, auto-reset and saved state."""

from __future__ import annotations

import abc
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from gmi_drl.roles.envs.counter_rng import stream_keys, uniform
from gmi_drl.roles.envs.errors import EnvActionError, EnvStateError
from gmi_drl.roles.envs.protocol import Step, VecEnvSpec
from gmi_drl.roles.graphs import Graph, Pool

from .options import MAX_EPISODE_STEPS


class TorchVecEnv(abc.ABC):
    """Steps N environments whose whole state is one tensor [N, state_size] on `device`.

    On a GPU a step launches the same kernels whatever happens in it, writes into the same tensors
    and never waits for the device; after `capture` it is the replay of a CUDA graph. On the CPU
    only the episodes that ended are begun anew.
    """

    env_id: str
    state_size: int
    draw_size: int  # random numbers that a first state takes
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self, spec: VecEnvSpec) -> None:
        num_env, device, dtype = spec.num_env, spec.device, spec.dtype
        self.num_env, self.device, self.dtype = num_env, device, dtype
        limit = spec.max_episode_steps
        self.max_episode_steps = MAX_EPISODE_STEPS[self.env_id] if limit is None else limit
        self._on_host = device.type == "cpu"
        self._state = torch.zeros(num_env, self.state_size, dtype=dtype, device=device)
        self._elapsed = torch.zeros(num_env, dtype=torch.int64, device=device)
        self._count = torch.zeros(num_env, dtype=torch.int64, device=device)  # of first states
        self._key = stream_keys(spec.seed, num_env, device)
        self._never = torch.zeros(num_env, dtype=torch.bool, device=device)
        self._observation = self.observe(self._state).clone()
        self._out: Step | None = None  # where other devices' steps are written, and their action
        self._action = torch.zeros(0)
        self._graph: Graph | None = None

    @abc.abstractmethod
    def first_state(self, draws: Tensor) -> Tensor:
        """Returns the states [N, state_size] of new episodes; draws are uniform [N, draw_size]."""

    @abc.abstractmethod
    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns the next state, reward [N] and terminated [N] (None: never)."""

    @abc.abstractmethod
    def observe(self, state: Tensor) -> Tensor:
        """Returns the observations [N, *obs] of states."""

    @torch.no_grad()
    def reset(self, seed: int | None = None) -> Tensor:
        if seed is not None:
            self._key.copy_(stream_keys(seed, self.num_env, self.device))
            self._count.zero_()
        states = self._draw_first_states()
        self._count += 1
        self._elapsed.zero_()
        self._set_state(states, self.observe(states))
        return self._observation

    @torch.no_grad()
    def step(self, action: Tensor) -> Step:
        action = self._checked(action)
        if self._on_host:
            state, reward, terminated, truncated = self._advance_all(action)
            final = self.observe(state)
            self._restart_rows(terminated | truncated, state, final)
            return Step(self._observation, reward, terminated, truncated, final)
        out = self._buffers(action)
        self._action.copy_(action)
        if self._graph is None:
            self._step_all()
        else:
            self._graph()
        return out

    @torch.no_grad()
    def capture(self, pool: Pool) -> None:
        """Makes every step from now on the replay of a CUDA graph, captured in `pool`."""
        space = self.action_space
        discrete = isinstance(space, gymnasium.spaces.Discrete)
        shape = (self.num_env, *(space.shape or ()))
        dtype = torch.int64 if discrete else self.dtype
        self._buffers(torch.zeros(shape, dtype=dtype, device=self.device))
        keep = [self._state, self._elapsed, self._count, self._observation]
        self._graph = Graph(self._step_all, self.device, keep=keep, pool=pool)

    def _advance_all(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns what a step leads to: state, reward, terminated and truncated."""
        state, reward, terminated = self.advance(self._state, action)
        self._elapsed += 1
        limit = self.max_episode_steps
        truncated = self._never if limit is None else self._elapsed >= limit
        return state, reward, self._never if terminated is None else terminated, truncated

    def _buffers(self, action: Tensor) -> Step:
        """Returns where a step of other devices is written, for actions like `action`."""
        if self._out is None:
            self._action = torch.empty_like(action)
            reward = torch.zeros(self.num_env, dtype=self.dtype, device=self.device)
            ends = torch.zeros_like(self._never), torch.zeros_like(self._never)
            final = torch.empty_like(self._observation)
            self._out = Step(self._observation, reward, *ends, final)
        return self._out

    def _step_all(self) -> None:
        """Makes the step of other devices, from `_action` into the buffers: launches only."""
        assert self._out is not None
        state, reward, terminated, truncated = self._advance_all(self._action)
        done, final = terminated | truncated, self.observe(state)
        results = (reward, terminated, truncated, final)
        for buffer, result in zip(self._out[1:], results, strict=True):
            buffer.copy_(result)
        self._state.copy_(torch.where(done[:, None], self._draw_first_states(), state))
        self._count += done
        self._elapsed.masked_fill_(done, 0)
        self._observation.copy_(self.observe(self._state))

    def _set_state(self, state: Tensor, observation: Tensor) -> None:
        if self._on_host:  # no copies: nobody else has them
            self._state, self._observation = state, observation
        else:
            self._state.copy_(state)
            self._observation.copy_(observation)

    def _restart_rows(self, done: Tensor, state: Tensor, final: Tensor) -> None:
        """Does to the rows that ended what a step of other devices does to all."""
        self._state, self._observation = state, final
        rows = done.nonzero().squeeze(1)
        if not len(rows):
            return
        key, count = self._key[rows], self._count[rows]
        fresh = self.first_state(uniform(key, count, self.draw_size, self.dtype))
        self._state = state.index_copy(0, rows, fresh)
        self._observation = final.index_copy(0, rows, self.observe(fresh))
        self._count[rows] = count + 1
        self._elapsed[rows] = 0

    def _draw_first_states(self) -> Tensor:
        return self.first_state(uniform(self._key, self._count, self.draw_size, self.dtype))

    def _checked(self, action: Tensor) -> Tensor:
        """Returns the action on our device.

        Its values are looked at on the CPU alone: on a GPU that would wait in every step.
        """
        shape = (self.num_env, *(self.action_space.shape or ()))
        if tuple(action.shape) != shape:
            raise EnvActionError.of_shape(self.env_id, action.shape, shape)
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            n = int(self.action_space.n)
            if self._on_host and bool(((action < 0) | (action >= n)).any()):
                raise EnvActionError(
                    f"env {self.env_id}: actions {sorted(set(action.tolist()))}; must be whole "
                    f"numbers from 0 to {n - 1}. Sample them from a Categorical of {n}."
                )
            return action.to(self.device)
        if self._on_host and not bool(torch.isfinite(action).all()):
            raise EnvActionError.not_finite(self.env_id, action)
        return action.to(self.device, self.dtype)

    def state_dict(self) -> dict[str, Any]:
        return {
            "env_id": self.env_id,
            "state": self._state.clone(),
            "elapsed": self._elapsed.clone(),
            "key": self._key.clone(),
            "count": self._count.clone(),
            "observation": self._observation.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["env_id"] != self.env_id or state["state"].shape != self._state.shape:
            raise EnvStateError(
                f"saved environments are {len(state['state'])} x {state['env_id']}, these are "
                f"{self.num_env} x {self.env_id}. Set env.id and env.num_env as saved."
            )
        self._set_state(
            state["state"].to(self.device, self.dtype, copy=True),
            state["observation"].to(self.device, copy=True),
        )
        for own, name in ((self._elapsed, "elapsed"), (self._key, "key"), (self._count, "count")):
            own.copy_(state[name])

    def close(self) -> None:
        """Lets a captured step go; tensors go with the object."""
        if self._graph is not None:
            self._graph.close()


def box(low: Any, high: Any, shape: tuple[int, ...] | None, dtype: torch.dtype) -> Any:
    """Returns a Box with the NumPy type of `dtype`; bounds are lists where shape is None."""
    numpy_dtype = np.float64 if dtype == torch.float64 else np.float32
    low, high = np.asarray(low, numpy_dtype), np.asarray(high, numpy_dtype)
    shape = low.shape if shape is None else shape
    return gymnasium.spaces.Box(
        np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=numpy_dtype
    )
