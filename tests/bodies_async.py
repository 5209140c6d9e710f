"""Roles of the modes async and serving that are killed where a test's script says."""

import faults
import gmi_drl.roles


class _Watched:
    """An environment that tells the script of each step, by its number in this process."""

    def __init__(self, env, gmi):
        self._env, self._gmi, self._steps = env, gmi, 0

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, action):
        faults.strike(self._gmi, "step", self._steps)
        self._steps += 1
        return self._env.step(action)


class MortalServing(gmi_drl.roles.Serving):
    def make_env(self, num_env=None, seed=0):
        return _Watched(super().make_env(num_env, seed), self.GMI_id)


class MortalSimulator(gmi_drl.roles.ServingSimulator):
    def make_env(self, num_env=None, seed=0):
        return _Watched(super().make_env(num_env, seed), self.GMI_id)


class MortalAgent(gmi_drl.roles.ServingAgent):
    def _send(self, sender, packet, action):
        faults.strike(self.GMI_id, "infer", packet.header.sequence)
        super()._send(sender, packet, action)
        faults.strike(self.GMI_id, "sent", packet.header.sequence)
