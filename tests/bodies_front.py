"""Roles that launched runs of the tests use."""

import contextlib
import os
import resource
import sys
import time
from pathlib import Path

import torch

import gmi_drl
from gmi_drl.roles import Trainer
from hooked import Hooked

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from custom_role import Pinger

__all__ = ["Drifts", "FillsTheDisk", "PaysNan", "Pinger", "Raises"]


class Raises(gmi_drl.DRL_role):
    """GMI 1 raises; the others wait for it."""

    def GMI_run(self):
        if self.GMI_id == 1:
            raise ValueError("on purpose")
        return self.GMI_collective(torch.zeros(1))


class SaysMuch(gmi_drl.DRL_role):
    """Raises an error with a text of fifty megabytes, which begins with the process's title."""

    def GMI_run(self):
        title = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode()
        raise ValueError(f"{title}; {'x' * 50_000_000}")


class _NanEnv:
    """Pays NaN in environment 5, at the 8th step of the 3rd iteration of 32 steps."""

    def __init__(self, env):
        self._env, self._steps = env, 0

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, action):
        step = self._env.step(action)
        if self._steps == 2 * 32 + 7:
            reward = step.reward.clone()
            reward[5] = torch.nan
            step = step._replace(reward=reward)
        self._steps += 1
        return step


class PaysNan(gmi_drl.Holistic):
    def make_env(self, num_env=None, seed=0):
        return _NanEnv(super().make_env(num_env, seed))


class Long(gmi_drl.Holistic):
    """Each of its iterations takes a second."""

    def loss(self, policy, *rest):
        time.sleep(0.5)  # what takes its time; there are two minibatches
        return super().loss(policy, *rest)


class Drifts(gmi_drl.Holistic):
    """GMI 1 changes one parameter behind everybody's back."""

    def loss(self, policy, *rest):
        if self.GMI_id == 1:
            with torch.no_grad():
                policy.head.bias[0] += 1.0
        return super().loss(policy, *rest)


class FillsTheDisk(Hooked, gmi_drl.Holistic):
    """After two checkpoints the run's disk is full."""

    def loss(self, *args):
        if self.iteration == 2:
            file = os.open(self.mgr.context.folder / "ballast", os.O_WRONLY | os.O_CREAT)
            with contextlib.suppress(OSError):
                while True:
                    os.write(file, bytes(4096))
            os.close(file)
        return super().loss(*args)


class Deaf(gmi_drl.DRL_role):
    """Never asks whether it should stop."""

    def GMI_run(self):
        (self.mgr.context.folder / "metrics.jsonl").write_text("{}\n")
        while True:
            time.sleep(0.1)  # until it is killed


def _limit_files(room):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))


class _Limited:
    """Once it has trained a step no file of its process may grow beyond `room` bytes."""

    room = 200_000

    def loss(self, *args):
        _limit_files(self.room)
        return super().loss(*args)


class LittleRoom(_Limited, gmi_drl.Holistic):
    pass


class NoRoom(_Limited, gmi_drl.Holistic):
    room = 0


class LittleRoomOfTrainer(_Limited, Trainer):
    pass


class _LimitedEnv:
    """From its 40th step on no file of its process may grow beyond 200,000 bytes."""

    def __init__(self, env):
        self._env, self._steps = env, 0

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, action):
        self._steps += 1
        if self._steps == 40:
            _limit_files(200_000)
        return self._env.step(action)


class LittleRoomInTime(gmi_drl.Holistic):
    """For algorithms that have no loss function which a role may replace."""

    def make_env(self, num_env=None, seed=0):
        return _LimitedEnv(super().make_env(num_env, seed))


class Wider(gmi_drl.Holistic):
    """A policy of its own, with a setting that its parameters do not show."""

    slope = 0.1

    def make_policy(self, env, generator):
        policy = super().make_policy(env, generator)
        usual, slope = policy.describe, self.slope
        policy.describe = lambda: usual() | {"slope": slope}
        return policy


class Steeper(Wider):
    slope = 0.2
