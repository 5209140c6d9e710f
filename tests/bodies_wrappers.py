"""Wrappers of a batch as users write them."""

from gmi_drl.roles.envs import EnvWrapper


class Doubled(EnvWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self._factor = factor

    def observe(self, observation):
        return observation * self._factor


class Raises(EnvWrapper):
    def __init__(self, env):
        raise KeyError("no such thing")


class FailsLate(EnvWrapper):
    """Raises in its third step, or shows another shape from then on."""

    def __init__(self, env, how):
        super().__init__(env)
        self._how, self._steps = how, 0

    def step(self, action):
        self._steps += 1
        if self._steps == 3 and self._how == "raises":
            raise KeyError("no such thing")
        return super().step(action)

    def observe(self, observation):
        return observation[:, :2] if self._steps > 2 else observation


class Whole(EnvWrapper):
    """Says nothing of how its observations are stacks, so that they are kept whole."""
