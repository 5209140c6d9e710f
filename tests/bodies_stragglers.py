"""GMIs that have all roles, of which one is late in each round."""

import time

from bodies_recovery import Mortal, Watched

LATE = 1  # the GMI
TAKEN = 6  # steps that it has taken of a horizon when the others are there


class _Held(Watched):
    """Environments that take no further step of a round until another GMI has sampled."""

    def __init__(self, env, role):
        super().__init__(env, role, "simulate")
        self._seen, self._steps = None, 0

    def step(self, action):
        role = self._role
        now = (role.group.generation, role.iteration)
        self._steps = self._steps + 1 if now == self._seen else 1
        self._seen = now
        until = time.monotonic() + 60
        mark, tally = (now[0] << 32) + now[1] + 1, role.mgr.tally
        lives = tally[0, "lives"]
        while (
            self._steps == TAKEN
            and tally[0, "sampled"] != mark
            and tally[0, "lives"] == lives  # else it is dead, and the round begun anew
        ):
            assert time.monotonic() < until, "the others wait for who is late"
            time.sleep(0.01)  # between two looks at the tally
        return super().step(action)


class LateHolistic(Mortal):
    """Passes the points of a script as well."""

    def make_env(self, num_env=None, seed=0):
        env = super().make_env(num_env, seed)
        return _Held(env._env, self) if self.GMI_id == LATE and not seed else env
