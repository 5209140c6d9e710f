"""Holds the steps of environments computed on the host, written by NumPy and read by torch."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor

from .errors import EnvActionError, EnvSpecError
from .flatten import Flattener, unflattened_action
from .protocol import Step, VecEnvSpec, WithoutState
from .spaces import action_shape, space_faults


class HostBuffers:
    """Allocates the tensors of a `Step` once, written through NumPy views of the same memory.

    On another device the host side is pinned and copied over by `publish`.
    """

    def __init__(
        self,
        num_env: int,
        observation_shape: tuple[int, ...],
        observation_dtype: torch.dtype,
        reward_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        pin = device.type == "cuda"

        def host(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, pin_memory=pin)

        shape = (num_env, *observation_shape)
        self._host = Step(
            observation=host(shape, observation_dtype),
            reward=host((num_env,), reward_dtype),
            terminated=host((num_env,), torch.bool),
            truncated=host((num_env,), torch.bool),
            final_observation=host(shape, observation_dtype),
        )
        self._out = (
            self._host
            if device.type == "cpu"
            else Step(*(torch.empty_like(t, device=device) for t in self._host))
        )
        self.observation: NDArray[Any] = self._host.observation.numpy()
        self.reward: NDArray[Any] = self._host.reward.numpy()
        self.terminated: NDArray[np.bool_] = self._host.terminated.numpy()
        self.truncated: NDArray[np.bool_] = self._host.truncated.numpy()
        self.final_observation: NDArray[Any] = self._host.final_observation.numpy()

    def publish(self, any_done: bool) -> Step:
        """Returns the step just written.

        `final_observation` counts only when an episode ended; otherwise the observation itself
        stands in for it and nothing is copied.
        """
        if self._out is not self._host:
            end = None if any_done else -1
            for target, source in zip(self._out[:end], self._host[:end], strict=True):
                target.copy_(source)
        out = self._out
        return out if any_done else out._replace(final_observation=out.observation)

    def publish_reset(self) -> Tensor:
        """Returns the observation just written."""
        if self._out is not self._host:
            self._out.observation.copy_(self._host.observation)
        return self._out.observation


def checked_action(env_id: str, action: Tensor, shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns `action` as a host array, refused unless it has `shape` = [N, *act]."""
    if tuple(action.shape) != shape:
        raise EnvActionError.of_shape(env_id, action.shape, shape)
    array: NDArray[Any] = action.detach().cpu().numpy()
    return array


def finite_rows(env_id: str, action: Tensor, shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns `action` as rows [N, A], refused unless it has `shape` and is finite."""
    array = checked_action(env_id, action, shape)
    if not np.isfinite(array).all():
        raise EnvActionError.not_finite(env_id, array)
    return array.reshape(len(array), -1)


def torch_dtype(space: Space[Any], floating: torch.dtype) -> torch.dtype:
    """Returns the type of the tensors that observations of a flat space are handed over in."""
    assert space.dtype is not None
    # torch reckons with no unsigned numbers but bytes.
    if space.dtype.kind == "f" or (space.dtype.kind == "u" and space.dtype.itemsize > 1):
        return floating
    return torch.from_numpy(np.empty(0, dtype=space.dtype)).dtype


class HostVecEnv(WithoutState, abc.ABC):
    """The part of a `VecEnv` that is the same for all libraries that step a batch on the host.

    Observations are vectors (see `spaces`), and `structured_space` is what the environment has. An
    integer Box keeps its type (images stay uint8), except that uint16 and wider are handed over in
    the spec's `dtype`, as all others are. Actions are rows of numbers, [N] for a Discrete alone.
    """

    def __init__(self, spec: VecEnvSpec) -> None:
        self.env_id, self.num_env, self.device = spec.env_id, spec.num_env, spec.device

    def take_spaces(
        self,
        spec: VecEnvSpec,
        observation: Space[Any],
        action: Space[Any],
        which: Callable[[int], str] = "environment {}".format,
    ) -> None:
        """Makes buffers for these spaces; EnvSpecError, and closed, where no policy fits them.

        `which`: see Flattener.
        """
        if faults := space_faults(self.env_id, observation, action):
            self.close()
            raise EnvSpecError(*faults)
        self.structured_space, self.action_space = observation, action
        self.flattener = Flattener(observation, self.env_id, which)
        self.observation_space = flat = self.flattener.flat
        self._action_shape = action_shape(action, self.num_env)
        dtype = torch_dtype(flat, spec.dtype)
        self.buffers = HostBuffers(self.num_env, flat.shape, dtype, spec.dtype, spec.device)

    def actions_of(self, action: Tensor) -> Any:
        """Returns actions as the environments take them, batched as Gymnasium does it."""
        rows = finite_rows(self.env_id, action, self._action_shape)
        return unflattened_action(self.action_space, rows)

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the environments."""
