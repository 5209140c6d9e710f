"""Has models of environments with known equations, for planning, and loads such functions.

B = rows, O = numbers of an observation, A = of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import torch
from gymnasium import spaces
from torch import Tensor, nn

from gmi_drl.placement.faults import closest
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import RoleError, RoleLoadError
from gmi_drl.roles.loading import load_class

# Of observations [B, O] and the environment's actions [B, A]: next observations and rewards [B].
Equations: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def pendulum(observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Gymnasium's Pendulum-v1: cos and sin of the angle, which is 0 upright, and its velocity."""
    gravity, time_s, max_torque, max_speed = 10.0, 0.05, 2.0, 8.0
    angle = torch.atan2(observation[:, 1], observation[:, 0])
    speed, torque = observation[:, 2], action[:, 0].clamp(-max_torque, max_torque)
    cost = angle.square() + 0.1 * speed.square() + 0.001 * torque.square()
    speed = speed + (1.5 * gravity * angle.sin() + 3.0 * torque) * time_s
    speed = speed.clamp(-max_speed, max_speed)
    angle = angle + speed * time_s
    return torch.stack([angle.cos(), angle.sin(), speed], 1), -cost


EQUATIONS: Final[dict[str, Equations]] = {"pendulum": pendulum}


class KnownModel(nn.Module):
    """A known model as planning sees it: one particle, and actions in [-1, 1]."""

    members = 1
    low: Tensor
    high: Tensor

    def __init__(self, name: str, env: VecEnv) -> None:
        """RoleLoadError for unknown equations, RoleError for those of another environment."""
        super().__init__()
        self._name, self._equations = name, equations_of(name)
        space = env.action_space
        assert isinstance(space, spaces.Box)
        for bound in ("low", "high"):
            limit = torch.as_tensor(getattr(space, bound), dtype=torch.float32).flatten()
            self.register_buffer(bound, limit, persistent=False)
        width, action = env.observation_space.shape or (), torch.zeros(2, len(self.low))
        try:
            next_observation, reward = self.predict(torch.zeros(1, 2, *width), action)
            shapes = [list(next_observation.shape[1:]), list(reward.shape[1:])]
        except Exception as error:
            raise RoleError(
                f"algorithm.model={name!r} raised {type(error).__name__} for observations "
                f"{[2, *width]} and actions {list(action.shape)}: {error}. Give the equations of "
                "this environment, or model: learned."
            ) from error
        if shapes != [[2, *width], [2]]:
            raise EnvSpecError(
                f"algorithm.model={name!r} gave shapes {shapes} for observations "
                f"{[2, *width]}; must give what follows {[2, *width]} and rewards [2]. Give "
                "the equations of this environment, or model: learned."
            )

    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Returns next observations [1, B, O] and rewards [1, B] of rows [1, B, O] and [B, A]."""
        scaled = self.low + (action + 1.0) * 0.5 * (self.high - self.low)
        next_observation, reward = self._equations(observation[0], scaled)
        return next_observation.unsqueeze(0), reward.unsqueeze(0)

    def describe(self) -> dict[str, str]:
        """Returns what its parameters do not say: see ActorCritic.describe."""
        return {"model": self._name}


def equations_of(name: str) -> Equations:
    """Returns the equations of this name, or a user's; RoleLoadError where there are none."""
    if name in EQUATIONS:
        return EQUATIONS[name]
    if ":" not in name:
        near = closest(name, ["learned", *EQUATIONS])
        raise RoleLoadError(
            f"algorithm.model={name!r}; must be learned, {', '.join(EQUATIONS)}, or "
            f"module:function.{f' Did you mean {near}?' if near else ''} Write a function of "
            "(observation, action) that gives (next_observation, reward)."
        )
    equations: Equations = load_class(name, kind="algorithm.model")
    return equations
