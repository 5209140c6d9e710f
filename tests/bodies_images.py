"""Environments that show images, registered by name."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Side(gymnasium.Env):
    """Shows a bright square on the left or on the right; the action is to say where. 8 times."""

    observation_space = Box(0, 255, (12, 16, 1), np.uint8)
    action_space = Discrete(2)

    def _image(self):
        self.side = int(self.np_random.integers(2))
        image = self.np_random.integers(0, 60, (12, 16, 1)).astype(np.uint8)
        row = int(self.np_random.integers(8))
        image[row : row + 4, 2 + 8 * self.side : 6 + 8 * self.side] = 220
        return image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._image(), {}

    def step(self, action):
        reward, self.age = float(action == self.side), self.age + 1
        return self._image(), reward, self.age == 8, False, {}


gymnasium.register("Side-v0", entry_point=Side)
