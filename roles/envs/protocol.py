"""Defines what every batch of environments gives: the `VecEnv` protocol and its `Step`.

    N    environments in the batch (`num_env` of one GMI)
    obs  shape of one observation, act  shape of one action

Terms are Gymnasium's. Auto-reset is SAME_STEP: when an episode ends in a step, that step already
returns the first observation of the next episode, and keeps the one the episode ended with in
`final_observation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium
import torch
from torch import Tensor

from gmi_drl.placement import MultiAgentConfig

from .errors import EnvStateError

_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class VecEnvSpec:
    """Says which environments to make; see `make_env`, whose arguments these are."""

    env_id: str
    num_env: int
    options: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    device: torch.device = _CPU
    seed: int = 0
    threads: int = 1
    dtype: torch.dtype = torch.float32
    wrappers: tuple[Callable[[Any], Any], ...] = ()  # of one environment of Gymnasium's
    multi_agent: MultiAgentConfig | None = None
    of_team: bool = False  # whether agents are columns of a row, and not rows of their own


class Step(NamedTuple):
    """Holds one step of all N environments, in tensors that are the environments' own buffers.

    Read them before the next `step` or `reset`, never write into them.

    An environment on a GPU that writes every step into the same tensors gives the same Step object
    each time. Captured work then reads it in place; what others give is copied first.

    `terminated` and `truncated` may both be true, as in Gymnasium (the last allowed step failed):
    bootstrap where `truncated & ~terminated`.
    """

    observation: Tensor  # [N, *obs], after auto-reset: what to act on next
    reward: Tensor  # [N], floating point
    terminated: Tensor  # [N] bool: the task ended the episode
    truncated: Tensor  # [N] bool: the time limit did
    final_observation: Tensor  # [N, *obs], the finished episode's last; else equal to `observation`


@dataclass(frozen=True)
class Stacking:
    """Says how observations are stacks of frames, as `frame_stack` makes them.

    They have the shape [..., count * channels], the newest frame last. Frames of before an episode
    are its first one again.
    """

    count: int
    channels: int  # numbers of a frame along the last axis

    def frames(self, observation: Tensor) -> Tensor:
        """Returns stacks [..., D] as their frames [..., places, count, channels]; a view."""
        return torch.unflatten(observation, -1, (-1, self.count, self.channels))


@runtime_checkable
class VecEnv(Protocol):
    """Steps N environments as one.

    One whose observations are stacks of frames may say so by `stacking`, a `Stacking`: batches of
    bytes then keep each frame once.
    """

    num_env: int
    observation_space: gymnasium.Space[Any]  # of one environment
    action_space: gymnasium.Space[Any]  # of one environment
    device: torch.device  # where the tensors of `Step` live
    max_episode_steps: int | None

    def reset(self, seed: int | None = None) -> Tensor:
        """Starts N new episodes and returns their first observations [N, *obs].

        Environment i draws from seed + i, or goes on drawing from where it was when `seed` is None.
        GMIs of one run want seeds num_env apart.
        """

    def step(self, action: Tensor) -> Step:
        """Acts in every environment; `action` is [N, *act], of any device and fitting type."""

    def state_dict(self) -> dict[str, Any] | None:
        """Returns all that is needed to go on bit for bit; None: this adapter cannot.

        The last `observation` is included; loads with `torch.load(weights_only=True)`.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state`; act next on `state["observation"]`."""

    def close(self) -> None:
        """Releases threads and processes; may be repeated."""


class WithoutState:
    """The part of a `VecEnv` whose environments hold their state where nobody can save it."""

    env_id: str

    def state_dict(self) -> dict[str, Any] | None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise EnvStateError(
            f"env {self.env_id}: its environments do not give their state away, so there is none "
            "to load. Resume with new episodes (reset), or use adapter mujoco or torch."
        )
