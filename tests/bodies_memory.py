"""An environment that only a policy that remembers does well in, registered by name."""

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

SYMBOLS, BEFORE, STEPS = 3, 2, 16


class Repeat(gymnasium.Env):
    """Shows a symbol a step; the action is to be the one of two steps before. It pays 1 or 0.

    The best return is 14 of 16 steps; without memory it is 14 / 3 on average.
    """

    observation_space = action_space = Discrete(SYMBOLS)

    def _show(self):
        self.shown.append(int(self.np_random.integers(SYMBOLS)))
        return self.shown[-1]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shown = []
        return self._show(), {}

    def step(self, action):
        there = len(self.shown) > BEFORE
        reward = float(there and int(np.asarray(action)) == self.shown[-1 - BEFORE])
        over = len(self.shown) == STEPS
        return self._show(), reward, over, False, {}


gymnasium.register("Repeat-v0", entry_point=Repeat)
