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


class Whole(EnvWrapper):
    """Says nothing of how its observations are stacks, so that they are kept whole."""
