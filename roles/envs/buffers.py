"""Holds the steps of environments computed on the host, written by NumPy and read by torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import EnvActionError
from .protocol import Step


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
