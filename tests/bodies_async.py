"""Roles of the modes async and serving that are killed where a test's script says."""

import os
import time

import torch

import faults
import gmi_drl.roles
from gmi_drl.roles.evaluators.sample_sender import SampleSender
from gmi_drl.roles.seeds import EVALUATION
from hooked import Hooked, after
from waits import until


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


class _Leaving:
    """Passes "left" when its work is done, before the launcher is told."""

    def GMI_run(self, **params):
        result = super().GMI_run(**params)
        (faults.folder() / f"left{self.GMI_id}").touch()
        faults.strike(self.GMI_id, "left", 0)
        return result


class MortalServing(_Leaving, gmi_drl.roles.Serving):
    def make_env(self, num_env=None, seed=0):
        return _Watched(super().make_env(num_env, seed), self.GMI_id)


class MortalSimulator(_Leaving, gmi_drl.roles.ServingSimulator):
    def make_env(self, num_env=None, seed=0):
        return _Watched(super().make_env(num_env, seed), self.GMI_id)


class MortalAgent(_Leaving, gmi_drl.roles.ServingAgent):
    def _send(self, sender, packet, action):
        faults.strike(self.GMI_id, "infer", packet.header.sequence)
        super()._send(sender, packet, action)
        faults.strike(self.GMI_id, "sent", packet.header.sequence)


class _MortalSender(SampleSender):
    number = 0

    def _send(self, dispatcher, *rest):
        put, number = dispatcher.put, self.number
        with open(faults.folder() / f"segments{self._gmi_id}", "a") as file:
            file.write(f"{number}\n")

        def struck(t, row):
            put(t, row)
            if t == len(self._rows) // 2:
                faults.strike(self._gmi_id, "segment", number)

        dispatcher.put = struck
        try:
            seconds = super()._send(dispatcher, *rest)
        finally:
            del dispatcher.put
        faults.strike(self._gmi_id, "sent", number)
        self.number += 1
        return seconds


class MortalAsyncAgent(_Leaving, gmi_drl.roles.Agent):
    """Passes "step" n, and "segment" n (one put of a few done) and "sent" n in each process."""

    def make_env(self, num_env=None, seed=0):
        return _Watched(super().make_env(num_env, seed), self.GMI_id)

    def make_sampler(self, env):
        return _MortalSender(self, env)


class NeverSetUp(gmi_drl.roles.Agent):
    """As GMI 2, says that it has begun to set up, and never ends that."""

    def make_env(self, num_env=None, seed=0):
        if self.GMI_id == 2:
            (self.mgr.context.folder / "begun").touch()
            while True:
                time.sleep(1)  # until it is killed
        return super().make_env(num_env, seed)


class TellingAgent(gmi_drl.roles.Agent):
    """Writes what its environments show first, and a number of torch's own, into the run's folder.

    Each process of it writes a line.
    """

    def make_env(self, num_env=None, seed=0):
        env = super().make_env(num_env, seed)
        with open(self.mgr.context.folder / f"first{self.GMI_id}", "a") as file:
            file.write(f"{env.reset().tolist()} {float(torch.rand(()))}\n")
        return env


class MortalAsyncTrainer(_Leaving, Hooked, gmi_drl.roles.Trainer):
    """Passes points of an iteration; every iteration it begins is a line in a file.

    "evaluate" is when all agents, which are to be MortalAsyncAgents, have left.
    """

    def make_env(self, num_env=None, seed=0):
        if seed == EVALUATION:
            agents = [gmi.gmi_id for gmi in self.mgr.layout.holding("agent")]
            until(
                lambda: all((faults.folder() / f"left{agent}").exists() for agent in agents),
                within_s=60,
            )
            self.strike("evaluate")
        return super().make_env(num_env, seed)

    def strike(self, at):
        faults.strike(self.GMI_id, at, self.optimizer._iteration)

    def loss(self, *args):
        self.strike("update")
        return super().loss(*args)

    def hook(self, optimizer):
        super().hook(optimizer)
        after(optimizer.progress, "agree", lambda: self.strike("agreed"))
        after(
            optimizer._batcher, "done",
            lambda: self.strike("given back"), before=lambda: self.strike("give back"),
        )  # fmt: skip
        after(self.group, "finish", lambda: self.strike("finished"))
        after(optimizer, "_publish", None, before=lambda: self.strike("publish"))
        after(optimizer, "finish", None, before=lambda: self.strike("after"))

    def begin(self, iteration):
        with open(faults.folder() / f"begun{self.GMI_id}", "a") as file:
            file.write(f"{iteration} {os.getpid()}\n")
        self.strike("begin")
