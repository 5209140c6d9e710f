"""Roles of template tdg_ex for tests: killed where a script says, with toy environments, faulty."""

import os
import time

import torch

import faults
import gmi_drl
from bodies_recovery import Watched
from gmi_drl.roles import SyncAgent, SyncTrainer
from gmi_drl.roles.state import checkpoint
from toy_env import ToyEnv


class _Torn:
    """What a process writes of a checkpoint is torn for a moment, and told to the script."""

    def _tear(self):
        write_part = checkpoint.write_part

        def torn(folder, iteration, name, state):
            write_part(folder, iteration, name, {"torn": True})
            self.strike("checkpoint")
            write_part(folder, iteration, name, state)

        checkpoint.write_part = torn


class MortalAgent(_Torn, SyncAgent):
    """Passes points of an order, by the iteration that it is of."""

    _iteration = 0

    def strike(self, at):
        faults.strike(self.GMI_id, at, self._iteration)

    def make_env(self, num_env=None, seed=0):
        self.strike("start")
        return Watched(super().make_env(num_env, seed), self, "simulate")

    def _follow(self):
        self._tear()
        self.strike("follow")
        super()._follow()
        self.strike("left")

    def _collect(self, order, *rest):
        self._iteration = order.header.policy_version
        self.strike("ordered")
        super()._collect(order, *rest)
        self.strike("brought")

    def _save(self, iteration):
        self._iteration = iteration
        told = super()._save(iteration)
        self.strike("written")
        return told


class MortalTrainer(_Torn, SyncTrainer):
    """Passes points of an iteration; every iteration it begins is a line in a file."""

    def strike(self, at):
        faults.strike(self.GMI_id, at, getattr(self, "_iteration", 0))

    def make_env(self, num_env=None, seed=0):
        self.strike("spaces" if seed == 4 else "evaluate")
        return super().make_env(num_env, seed)

    def loss(self, *args):
        self.strike("reduce")
        return super().loss(*args)

    def _setup(self):
        super()._setup()
        self._tear()
        commit, finish, save = checkpoint.commit, self.group.finish, self._crew.save

        def committed(*args):
            path = commit(*args)
            self.strike("committed")
            return path

        def finished(outcome):
            finish(outcome)
            self.strike("finished")

        def parts_written(iteration):
            told = save(iteration)
            self.strike("parts written")
            return told

        checkpoint.commit, self.group.finish = committed, finished
        self._crew.save = parts_written

    def _assemble(self):
        super()._assemble()
        self.strike("assembled")

    def _take(self, *args):
        super()._take(*args)
        self.strike("took")

    def _after_training(self):
        self.strike("trained")
        super()._after_training()
        self.strike("dismissed")

    def _iterate(self):
        with open(faults.folder() / f"begun{self.GMI_id}", "a") as file:
            file.write(f"{self._iteration} {os.getpid()}\n")
        super()._iterate()


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


class ToyAgent(_Known, SyncAgent):
    def make_env(self, num_env=None, seed=0):
        mine = self.mgr.context.spec.num_env
        return _Toys(self.GMI_id * mine, mine)


class ToyTrainer(_Known, SyncTrainer):
    """Keeps what it trained on last."""

    def make_env(self, num_env=None, seed=0):
        return _Toys(0, num_env)

    def _iterate(self):
        super()._iterate()
        rollout = self._rollout
        torch.save(rollout.raw_observation, self.mgr.context.folder / "seen.pt")


# What goes wrong ----------------------------------------------------------------------------------


class RaisingAgent(SyncAgent):
    """Fails in its third iteration."""

    def _collect(self, order, *rest):
        if order.header.policy_version == 2:
            raise ValueError("on purpose")
        super()._collect(order, *rest)


class WideAgent(SyncAgent):
    """Makes another policy than its trainer."""

    def make_policy(self, env, generator):
        policy = super().make_policy(env, generator)
        policy.more = torch.nn.Parameter(torch.zeros(5))
        return policy


class Unlike(SyncTrainer):
    """Makes a policy of the agents' size, of which agents bring something else."""

    def _setup(self):
        super()._setup()
        for handover in self._handovers.values():
            handover.schema += b" "


class HungAgent(SyncAgent):
    """The first one does nothing any more from its second iteration on."""

    def _collect(self, order, *rest):
        while order.header.policy_version == 1 and self.GMI_id == 0:
            time.sleep(1)  # until it is killed
        super()._collect(order, *rest)


class SlowAgent(SyncAgent):
    """The first one builds its environments and collects its fourth horizon for 2.8 s, and is

    killed over that once.
    """

    def make_env(self, num_env=None, seed=0):
        if self.GMI_id == 0:
            time.sleep(2.8)  # environments that are built so long
        return super().make_env(num_env, seed)

    def _collect(self, order, *rest):
        if (self.GMI_id, order.header.policy_version) == (0, 3):
            time.sleep(2.8)  # a horizon that takes so long
            faults.strike(0, "simulate", 3)
        super()._collect(order, *rest)


class HungTrainer(SyncTrainer):
    """The last one does nothing any more from its second update on."""

    def loss(self, *args):
        while self._iteration == 1 and self.GMI_id == len(self.mgr.layout.gmis) - 1:
            time.sleep(1)  # until it is killed
        return super().loss(*args)


class FullDisk(SyncAgent):
    """The disk does not take its part of checkpoint 4."""

    full = (4,)

    def _save(self, iteration):
        return "OSError: no space left" if iteration in self.full else super()._save(iteration)


class FullForEver(FullDisk):
    """Nor the one at the end."""

    full = (4, 6)


class StopsEarly(SyncTrainer):
    """Somebody has asked it to stop when it has begun its third iteration."""

    def _collect(self):
        if self._iteration == 2:
            self.mgr.stop_requested = lambda: True
        return super()._collect()


class MortalAndStopped(StopsEarly, MortalTrainer):
    """Both."""
