"""Experience with ends and cuts, and its transitions written out: what a replay is held to."""

import torch

from gmi_drl.roles.samples.batch import Batch

GAMMA = 0.9


class World:
    """Environments whose episodes end at random, and all that they have brought so far."""

    def __init__(self, num_env, seed=0):
        self.generator, self.num_env = torch.Generator().manual_seed(seed), num_env
        self.steps = []  # of all environments: dicts of what each brought
        self.seen = self._observations()
        self.anew = set()  # steps before which the environments were made anew

    def _observations(self):
        return torch.rand(self.num_env, 2, generator=self.generator)

    def make_anew(self):
        self.seen = self._observations()
        self.anew.add(len(self.steps))

    def batch(self, steps):
        first = len(self.steps)
        for _ in range(steps):
            done = torch.rand(self.num_env, generator=self.generator) < 0.25
            cut = torch.rand(self.num_env, generator=self.generator) < 0.5
            after = self._observations()
            self.steps.append(
                {
                    "raw_observation": self.seen, "next_observation": after,
                    "action": torch.rand(self.num_env, 1, generator=self.generator),
                    "reward": torch.rand(self.num_env, generator=self.generator),
                    "done": done.float(), "terminated": done & ~cut,
                }
            )  # fmt: skip
            self.seen = torch.where(done[:, None], self._observations(), after)
        new = self.steps[first:]
        return Batch({name: torch.stack([step[name] for step in new]) for name in new[0]})

    def transition(self, env, step, n_step, bootstrap):
        """A row written out: reward, discount, and what followed."""
        reward = 0.0
        for last in range(step, min(step + n_step, len(self.steps))):
            it = self.steps[last]
            reward += GAMMA ** (last - step) * float(it["reward"][env])
            if it["done"][env] or last + 1 in self.anew:
                break
        over = it["terminated" if bootstrap else "done"][env]
        discount = 0.0 if over else GAMMA ** (last - step + 1)
        return reward, discount, it["next_observation"][env]
