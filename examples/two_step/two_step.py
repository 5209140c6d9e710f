"""The two-step game of the QMIX paper (Rashid et al., 2018), by PettingZoo's interface."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class TwoStep:
    """Two agents, two actions each, two steps, and a reward that they share.

    In the first step the first agent chooses which matrix is played in the second one: one that
    pays 7 whatever they do, or one that pays 8 if both take their second action, and else 1 or 0.
    """

    PAID = (((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0)))

    def __init__(self) -> None:
        self.possible_agents = ["first", "second"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0, 1, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self._state = list(self.possible_agents), 0
        return self._seen(), {}

    def _seen(self) -> dict[str, Any]:
        state = np.eye(3, dtype=np.float32)[self._state]
        return dict.fromkeys(self.possible_agents, state)

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        both, paid, over = self.possible_agents, 0.0, self._state > 0
        if over:
            paid = self.PAID[self._state - 1][actions["first"]][actions["second"]]
            self.agents = []
        else:
            self._state = 1 + actions["first"]
        ended, going = dict.fromkeys(both, over), dict.fromkeys(both, False)
        return self._seen(), dict.fromkeys(both, paid), ended, going, {}

    def close(self) -> None:
        pass
