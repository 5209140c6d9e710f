"""Roles of template tdg_ex for tests: killed where a script says, with toy environments, faulty."""

import os
import time

import numpy as np
import torch
from gymnasium import spaces

import faults
import gmi_drl
from bodies_recovery import Watched
from bodies_tasks import marks
from gmi_drl.roles import Agent, Trainer
from gmi_drl.roles.evaluators.gradients import GradientLoop
from gmi_drl.roles.evaluators.rollout_worker import RolloutLoop
from gmi_drl.roles.state import checkpoint
from hooked import Hooked, after
from toy_env import ToyEnv
from waits import until


class _Torn:
    """What a process writes of a checkpoint is torn for a moment, and told to the script."""

    def _tear(self):
        write_part = checkpoint.write_part

        def torn(folder, iteration, name, state):
            write_part(folder, iteration, name, {"torn": True})
            self.strike("checkpoint")
            write_part(folder, iteration, name, state)

        checkpoint.write_part = torn


class _Mortal:
    """A mixin for loops that follow orders: passes points of each."""

    def _follow(self):
        self._role.strike("follow")
        super()._follow()
        self._role.strike("left")

    def _collect(self, order, *rest):
        self._role.iteration = order.header.policy_version
        self._role.strike("ordered")
        super()._collect(order, *rest)
        self._role.strike("brought")

    def _save(self, iteration):
        self._role.iteration = iteration
        failure = super()._save(iteration)
        self._role.strike("written")
        return failure


class _MortalLoop(_Mortal, RolloutLoop):
    pass


class _MortalGradients(_Mortal, GradientLoop):
    pass


class MortalAgent(_Torn, Agent):
    """Passes points of an order, by the iteration that it is of."""

    iteration = 0

    def strike(self, at):
        # One that sends gradients is not asked in each iteration: others may bring all of it.
        late = self.mgr.config.algorithm.sends_gradients
        faults.strike(self.GMI_id, at, self.iteration, late=late)

    def make_env(self, num_env=None, seed=0):
        self.strike("start")
        return Watched(super().make_env(num_env, seed), self, "simulate")

    def make_sampler(self, env):
        self._tear()
        sends = self.mgr.config.algorithm.sends_gradients
        return (_MortalGradients if sends else _MortalLoop)(self, env)


class MortalTrainer(_Torn, Hooked, Trainer):
    """Passes points of an iteration; every iteration it begins is a line in a file."""

    def strike(self, at):
        faults.strike(self.GMI_id, at, self.iteration)

    def make_env(self, num_env=None, seed=0):
        self.strike("spaces" if seed == 4 else "evaluate")
        return super().make_env(num_env, seed)

    def loss(self, *args):
        self.strike("reduce")
        return super().loss(*args)

    def hook(self, optimizer):
        super().hook(optimizer)
        self._tear()
        evaluators = getattr(optimizer, "_evaluators", optimizer)
        after(checkpoint, "commit", lambda: self.strike("committed"))
        after(self.group, "finish", lambda: self.strike("finished"))
        after(evaluators._coordinator, "save", lambda: self.strike("parts written"))
        codecs = evaluators._codecs.values() if evaluators is not optimizer else [optimizer._codec]
        for codec in codecs:
            after(codec, "unpack", lambda: self.strike("took"))
        after(
            optimizer, "finish",
            lambda: self.strike("dismissed"), before=lambda: self.strike("trained"),
        )  # fmt: skip

    def connected(self):
        self.strike("assembled")

    def begin(self, iteration):
        with open(faults.folder() / f"begun{self.GMI_id}", "a") as file:
            file.write(f"{iteration} {os.getpid()}\n")


# Environments that are shared out -----------------------------------------------------------------


class _Known:
    """A policy whose actions depend on what it sees alone: two agents act as one would."""

    def make_policy(self, env, generator):
        policy = super().make_policy(env, generator)
        policy.distribution.noise = lambda shape, log_std, generator, out: out.fill_(0.3)
        return policy


class _Toys(ToyEnv):
    """Environments number `first` on of many. They pay for actions near a place of their own."""

    def __init__(self, first, num_env):
        super().__init__(num_env, 7)
        self._first = first

    def _observation(self):
        seen = super()._observation()
        seen[:, 0] += self._first
        return seen / 5

    def step(self, action):
        step = super().step(action)
        mine = torch.arange(self._first, self._first + self.num_env) / 10
        return step._replace(reward=step.reward - (action[:, 0] - mine).square())


class ToyHolistic(_Known, gmi_drl.Holistic):
    def make_env(self, num_env=None, seed=0):
        return _Toys(0, num_env or self.mgr.context.spec.num_env)


class ToyAgent(_Known, Agent):
    def make_env(self, num_env=None, seed=0):
        mine = self.mgr.context.spec.num_env
        return _Toys(self.GMI_id * mine, mine)


class ToyTrainer(_Known, Hooked, Trainer):
    """Keeps what it trained on last."""

    def make_env(self, num_env=None, seed=0):
        return _Toys(0, num_env)

    def hook(self, optimizer):
        super().hook(optimizer)
        path = self.mgr.context.folder / "seen.pt"
        batch = optimizer._evaluators.batch
        after(optimizer, "step", lambda: torch.save(batch["raw_observation"], path))


# What goes wrong ----------------------------------------------------------------------------------


class _Looping(Agent):
    """An agent with a loop of its own."""

    def make_sampler(self, env):
        return self.Loop(self, env)


class RaisingAgent(_Looping):
    """Fails in its third iteration."""

    class Loop(RolloutLoop):
        def _collect(self, order, *rest):
            if order.header.policy_version == 2:
                raise ValueError("on purpose")
            super()._collect(order, *rest)


class WideAgent(Agent):
    """Makes another policy than its trainer."""

    def make_policy(self, env, generator):
        policy = super().make_policy(env, generator)
        policy.more = torch.nn.Parameter(torch.zeros(5))
        return policy


class Unlike(Hooked, Trainer):
    """Makes a policy of the agents' size, of which agents bring something else."""

    def hook(self, optimizer):
        super().hook(optimizer)
        for codec in optimizer._evaluators._codecs.values():
            codec.schema += b" "


class HungAgent(_Looping):
    """The first one does nothing any more from its second iteration on."""

    class Loop(RolloutLoop):
        def _collect(self, order, *rest):
            while order.header.policy_version == 1 and self._role.GMI_id == 0:
                time.sleep(1)  # until it is killed
            super()._collect(order, *rest)


class SlowAgent(_Looping):
    """The first one builds its environments and collects its fourth horizon for 2.8 s, and is

    killed over that once.
    """

    def make_env(self, num_env=None, seed=0):
        if self.GMI_id == 0:
            time.sleep(2.8)  # environments that are built so long
        return super().make_env(num_env, seed)

    class Loop(RolloutLoop):
        def _collect(self, order, *rest):
            if (self._role.GMI_id, order.header.policy_version) == (0, 3):
                time.sleep(2.8)  # a horizon that takes so long
                faults.strike(0, "simulate", 3)
            super()._collect(order, *rest)


class HungTrainer(Hooked, Trainer):
    """The last one does nothing any more from its second update on."""

    def loss(self, *args):
        while self.iteration == 1 and self.GMI_id == len(self.mgr.layout.gmis) - 1:
            time.sleep(1)  # until it is killed
        return super().loss(*args)


class FullDisk(_Looping):
    """The disk does not take its part of checkpoint 4."""

    full = (4,)

    class Loop(RolloutLoop):
        def _save(self, iteration):
            full = iteration in self._role.full
            return "OSError: no space left" if full else super()._save(iteration)


class FullForEver(FullDisk):
    """Nor the one at the end."""

    full = (4, 6)


class StopsEarly(Hooked, Trainer):
    """Somebody has asked it to stop when it has begun its third iteration."""

    def begin(self, iteration):
        super().begin(iteration)
        if iteration == 2:
            self.optimizer._stop_requested = lambda: True
            self.mgr.stop_requested = lambda: True


class MortalAndStopped(StopsEarly, MortalTrainer):
    """Both."""


class _Held:
    """Environments whose first step waits until the trainer has trained on three rounds."""

    def __init__(self, env, folder):
        self._env, self._metrics = env, folder / "metrics.jsonl"
        self._held = True

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, action):
        if self._held:
            until(lambda: marks(self._metrics) >= 3, "that the trainer waits for nobody", 60)
            self._held = False
        return self._env.step(action)


class LateAgent(Agent):
    """Of the GMI with the highest number the first round takes as long as three of the others."""

    def make_env(self, num_env=None, seed=0):
        env = super().make_env(num_env, seed)
        is_late = self.GMI_id == max(gmi.gmi_id for gmi in self.mgr.layout.holding("agent"))
        return _Held(env, self.mgr.context.folder) if is_late else env


# Kills among those that are not waited for --------------------------------------------------------


class _Numbered(ToyEnv):
    """Every observation is there once: whose it is, its number, and the iteration it is made in."""

    def __init__(self, num_env, role):
        super().__init__(num_env, 7)
        self._role, self._number = role, 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def _observation(self):
        seen = torch.zeros(self.num_env, 3)
        seen[:, 0] = 10 * self._role.GMI_id + self._role.life
        seen[:, 1] = self._number * self.num_env + torch.arange(self.num_env)
        seen[:, 2] = self._role.iteration
        return seen

    def step(self, action):
        self._number += 1
        return super().step(action)


class _Brings(RolloutLoop):
    """Writes down each life that has brought something."""

    def _collect(self, *order):
        super()._collect(*order)
        with open(faults.folder() / f"brought{self._role.GMI_id}", "a") as file:
            file.write(f"{self._role.life}\n")


class _MortalBrings(_Mortal, _Brings):
    pass


class MortalLateAgent(MortalAgent):
    """Is late as `LateAgent` in its first round, and killed where a script says."""

    def make_env(self, num_env=None, seed=0):
        self.life = self.mgr.tally[self.GMI_id, "lives"] - 1  # 0 in its first process
        env = _Numbered(num_env or self.mgr.context.spec.num_env, self)
        is_late = self.GMI_id == max(gmi.gmi_id for gmi in self.mgr.layout.holding("agent"))
        return Watched(_Held(env, self.mgr.context.folder) if is_late else env, self, "simulate")

    def make_sampler(self, env):
        return _MortalBrings(self, env)


class MournfulTrainer(Hooked, Trainer):
    """Trains on three rounds, and waits until the late one and the second life have brought theirs.

    What each round is trained on is a file.
    """

    life = 0

    def make_env(self, num_env=None, seed=0):
        return _Numbered(num_env, self)

    def hook(self, optimizer):
        super().hook(optimizer)
        batch = optimizer._evaluators.batch

        def keep():
            torch.save(batch["raw_observation"], faults.folder() / f"trained{self.iteration}")

        after(optimizer._evaluators, "sample", keep)

    def begin(self, iteration):
        if iteration == 3:
            until(self._brought, "something of who was killed", 60)

    def _brought(self):
        lives = {path.name: path.read_text() for path in faults.folder().glob("brought*")}
        return "brought2" in lives and any("1" in its for its in lives.values())
