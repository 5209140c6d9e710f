"""Experience of one iteration, laid out so that collecting and training copy nothing twice.

T = horizon, N = num_env of this GMI, D = observation width, A = action columns, P = distribution
parameters. One row of a rollout holds everything a minibatch needs:

    observation (normalised) D | action A | parameters P | value 1 | log-prob 1 | advantage 1 |
    return 1 | zeros, up to a multiple of 8

The zeros let each row, and with it the observations that a network is given, begin where a matrix
kernel of a GPU reads fastest (see alignment.py). Nothing reads them, and they never travel: between
GMIs each part goes by its name. A `Collector` (collector.py) writes straight into the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gymnasium import spaces
from torch import Tensor

from gmi_drl.roles.policies.alignment import ROW, aligned
from gmi_drl.roles.policies.policy import ActorCritic


@dataclass(frozen=True)
class Columns:
    """Where each part of a row stands."""

    observation: slice
    action: slice
    parameters: slice
    head: slice  # parameters and value: what the network puts out
    value: int
    log_prob: int
    advantage: int
    ret: int
    width: int  # of a whole row, zeros included

    @classmethod
    def of(cls, obs_dim: int, action_columns: int, parameters: int) -> Columns:
        a = obs_dim + action_columns
        p = a + parameters
        return cls(
            slice(0, obs_dim), slice(obs_dim, a), slice(a, p), slice(a, p + 1),
            p, p + 1, p + 2, p + 3, aligned(p + 4, ROW),
        )  # fmt: skip


class Rollout:
    """The buffers of one iteration, allocated once."""

    def __init__(
        self, horizon: int, num_env: int, obs_dim: int, policy: ActorCritic, device: torch.device
    ) -> None:
        dist = policy.distribution
        self.columns = Columns.of(obs_dim, dist.action_columns, dist.parameters)
        self.rows = torch.zeros(horizon, num_env, self.columns.width, device=device)
        self.raw_observation = torch.zeros(horizon, num_env, obs_dim, device=device)
        self.reward = torch.zeros(horizon, num_env, device=device)
        self.ended = torch.zeros(horizon, num_env, dtype=torch.bool, device=device)
        self.done = torch.zeros(horizon, num_env, device=device)  # the same as numbers
        self.noise = torch.zeros(horizon, num_env, dist.noise_columns, device=device)
        self.last_value = torch.zeros(num_env, device=device)
        self.log_std = policy.log_std.detach().clone()  # of the policy that sampled

    def __getitem__(self, name: str) -> Tensor:
        """One part of the rows by its name: [T, N, width], or [T, N] for a single column."""
        part: Tensor = self.rows[..., getattr(self.columns, name)]
        return part

    @property
    def flat(self) -> Tensor:
        """The rows as one batch [T * N, width]."""
        return self.rows.flatten(0, 1)


@dataclass(frozen=True)
class StepViews:
    """The parts of a rollout that step t fills; made once: a view costs as much as its copy."""

    raw_observation: Tensor
    observation: Tensor
    head: Tensor
    parameters: Tensor
    action: Tensor
    noise: Tensor
    reward: Tensor
    ended: Tensor

    @classmethod
    def of(cls, rollout: Rollout, t: int) -> StepViews:
        rows, c = rollout.rows[t], rollout.columns
        return cls(
            rollout.raw_observation[t],
            rows[:, c.observation],
            rows[:, c.head],
            rows[:, c.parameters],
            rows[:, c.action],
            rollout.noise[t],
            rollout.reward[t],
            rollout.ended[t],
        )


def env_action(
    space: spaces.Space,  # type: ignore[type-arg]
    device: torch.device,
) -> Callable[[Tensor], Tensor]:
    """What turns a policy's action rows [N, A] into the environment's.

    A policy acts in [-1, 1]; a bounded Box is reached by clamping and scaling, one with infinite
    bounds gets the action as it is, clamped to those that are finite, Discrete gets an int64
    vector [N].
    """
    if isinstance(space, spaces.Discrete):
        return lambda action: action[:, 0].long()  # from 0: adapters add the space's start
    assert isinstance(space, spaces.Box)
    if not (space.bounded_below.any() or space.bounded_above.any()):
        return lambda action: action
    low = torch.as_tensor(space.low, dtype=torch.float32, device=device)
    high = torch.as_tensor(space.high, dtype=torch.float32, device=device)
    if not space.is_bounded():
        return lambda action: torch.minimum(torch.maximum(action, low), high)
    half, middle = (high - low) / 2, (high + low) / 2
    if bool((half == 1).all()) and bool((middle == 0).all()):
        return lambda action: action.clamp(-1.0, 1.0)
    return lambda action: torch.addcmul(middle, action.clamp(-1.0, 1.0), half)
