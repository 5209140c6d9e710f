"""Buffers that environments computed on the host (NumPy) hand their steps over in."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import EnvActionError
from .protocol import Step


class HostBuffers:
    """The tensors of a `Step`, allocated once, written through NumPy views of the same memory.

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
        self._apart = self._out is not self._host
        self.observation: NDArray[Any] = self._host.observation.numpy()
        self.reward: NDArray[Any] = self._host.reward.numpy()
        self.terminated: NDArray[np.bool_] = self._host.terminated.numpy()
        self.truncated: NDArray[np.bool_] = self._host.truncated.numpy()
        self.final_observation: NDArray[Any] = self._host.final_observation.numpy()

    def publish(self, any_done: bool) -> Step:
        """The step just written. `final_observation` counts only when an episode ended; otherwise
        the observation itself stands in for it and nothing is copied."""
        if self._apart:
            last = None if any_done else -1
            for to, from_ in zip(self._out[:last], self._host[:last], strict=True):
                to.copy_(from_)
        out = self._out
        return out if any_done else out._replace(final_observation=out.observation)

    def publish_reset(self) -> Tensor:
        """The observation just written."""
        if self._apart:
            self._out.observation.copy_(self._host.observation)
        return self._out.observation


def checked_action(action: Tensor, shape: tuple[int, ...]) -> NDArray[Any]:
    """`action` as a host array, refused unless it has `shape` = [N, *act]."""
    if tuple(action.shape) != shape:
        raise EnvActionError(
            f"action has shape {list(action.shape)}; these environments take {list(shape)} "
            "(num_env first). Reshape it, or make as many environments as the policy acts for."
        )
    array: NDArray[Any] = action.detach().cpu().numpy()
    return array


def not_finite_action(where: str, action: NDArray[Any]) -> EnvActionError:
    """The error that names the first environment whose action is NaN or infinite."""
    rows = np.isfinite(action).reshape(len(action), -1).all(1)
    index = int(np.argmin(rows))
    return EnvActionError(
        f"{where}: the action of environment {index} is {action[index].tolist()}; actions must be "
        "finite. The policy has diverged: lower its learning rate, or clip its gradients."
    )
