"""Roles that are killed where a test's script says, and ranks that are killed and come back."""

import json
import os
import random
from pathlib import Path

import faults
import gmi_drl
from gmi_drl.comm import GroupReformed
from gmi_drl.roles.state import checkpoint
from hooked import Hooked, after


class Watched:
    """An environment that tells the script of each step."""

    def __init__(self, env, role, at):
        self._env, self._role, self._at = env, role, at

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, action):
        step = self._env.step(action)
        self._role.strike(self._at)
        return step


class Mortal(Hooked, gmi_drl.Holistic):
    """PPO that passes all points of a script; every iteration it begins is a line in a file."""

    def strike(self, at):
        faults.strike(self.GMI_id, at, self.iteration)

    def make_env(self, num_env=None, seed=0):
        if num_env is None:
            self.strike("start")
        return Watched(super().make_env(num_env, seed), self, "evaluate" if seed else "simulate")

    def loss(self, *args):
        self.strike("reduce")
        return super().loss(*args)

    def hook(self, optimizer):
        super().hook(optimizer)
        write_part = checkpoint.write_part

        def torn(folder, iteration, name, state):
            write_part(folder, iteration, name, {"torn": True})
            self.strike("checkpoint")
            write_part(folder, iteration, name, state)

        checkpoint.write_part = torn
        after(checkpoint, "commit", lambda: self.strike("committed"))
        after(self.group, "finish", lambda: self.strike("finished"))
        after(
            optimizer, "load_state_dict",
            lambda: self.strike("took over"), before=lambda: self.strike("take over"),
        )  # fmt: skip

    def connected(self):
        self.strike("assembled")

    def begin(self, iteration):
        with open(faults.folder() / f"begun{self.GMI_id}", "a") as file:
            file.write(f"{iteration} {os.getpid()}\n")


class MortalWithoutLoss(Mortal):
    """The same by an algorithm whose loss no role may replace."""

    loss = gmi_drl.Holistic.loss


class Parricide(Mortal):
    """The same, but what is killed is the fork server, and all that it has forked with it."""

    def strike(self, at):
        faults.strike(self.GMI_id, at, self.iteration, os.getppid())


class Stubborn(gmi_drl.DRL_role):
    """Not recoverable: GMI 1 is killed, the others wait for it."""

    def GMI_run(self):
        faults.strike(self.GMI_id, "run", 0)
        self.mgr.allreduce(1.0)


def count_together(group, folder):
    """Counts up together, from what any rank has kept in `folder`, until there is a file `enough`.

    The buffers hold its last four bits, so that every result shows whose data is in it; four ranks'
    sums of these are whole in bf16, too. Returns the last number, and how many results were wrong.
    """
    wrong = 0
    jitter = random.Random(os.getpid())
    while True:
        try:
            group.reform()
            number = max(group.exchange(_kept(folder, group.rank)))
            bucket = group.bucket("numbers", 3000)
            other = group.bucket("rows", 5)
            while not any(group.exchange((Path(folder) / "enough").exists())):
                bits = number % 16
                bucket.buffer.fill_(float(bits * group.size + group.rank))
                total = bucket.reduce("sum")
                ranks = range(group.size)
                wrong += not bool((total == sum(bits * group.size + r for r in ranks)).all())
                other.buffer.fill_(number)
                wrong += not bool((other.gather() == number).all())
                if jitter.random() < 0.1:
                    os.sched_yield()
                number += 1
                _keep(folder, group.rank, number)
            group.finish(json.dumps(number))
        except GroupReformed:
            continue
        return number, wrong


def _kept(folder, rank):
    try:
        return int((Path(folder) / str(rank)).read_text() or 0)
    except FileNotFoundError:
        return 0


def _keep(folder, rank, number):
    path = Path(folder) / str(rank)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(str(number))
    temporary.replace(path)
