"""Bit flipping (Andrychowicz et al., 2017, section 3.1): reach a goal of n bits, one flip a step.

The reward is -1 a step, and 0 when the goal is reached, which ends the episode. With n = 15 that
hardly ever happens by chance.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary


class BitFlip(gymnasium.Env[dict[str, Any], int]):
    """Flips one of `n` bits a step, for n steps at most."""

    def __init__(self, n: int = 15) -> None:
        self.observation_space = Dict(
            {name: MultiBinary(n) for name in ("observation", "achieved_goal", "desired_goal")}
        )
        self.action_space = Discrete(n)
        self._n, self._steps = n, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._bits, self._goal = self.np_random.integers(0, 2, (2, self._n), dtype=np.int8)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._bits[action] ^= 1
        self._steps += 1
        reward = float(self.compute_reward(self._bits, self._goal, {}))
        return self._seen(), reward, reward == 0.0, self._steps >= self._n, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Returns the rewards of goals [..., n], as hindsight asks for them."""
        return np.all(achieved_goal == desired_goal, -1) - 1.0

    def _seen(self) -> dict[str, Any]:
        bits = self._bits.copy()
        return {"observation": bits, "achieved_goal": bits, "desired_goal": self._goal.copy()}


gymnasium.register("BitFlip-v0", entry_point=BitFlip)
