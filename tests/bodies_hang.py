"""Environments and roles that hang, are stopped, or will not close."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

import gmi_drl
from gmi_drl.roles import Agent, Serving

_FOLDER = "GMI_DRL_TEST_HANGS"


def script(monkeypatch, path, how, gmis, times=1):
    """From now on GMIs `gmis` do `how` (hang_here, say) in a step of their environments.

    Each in the first `times` of its processes, at its 40th step.
    """
    path.mkdir()
    monkeypatch.setenv(_FOLDER, f"{path}:{how}:{','.join(map(str, gmis))}:{times}")


def hang_here():
    """Does nothing, for ever, and is not to be asked anything."""
    while True:
        time.sleep(3600)


def stop_here():
    """The process is stopped, as by a debugger or an operator."""
    os.kill(os.getpid(), signal.SIGSTOP)


def exit_here():
    """The environment calls sys.exit."""
    sys.exit(3)


class _Hangs:
    """An environment that hangs by the script."""

    def __init__(self, env, gmi):
        self._env, self._gmi, self._steps = env, gmi, 0

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, action):
        self._steps += 1
        path, how, gmis, times = os.environ[_FOLDER].split(":")
        if self._steps == 40 and str(self._gmi) in gmis.split(","):
            for number in range(int(times)):
                try:
                    os.close(os.open(Path(path) / f"{self._gmi}-{number}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                globals()[how]()
                break
        return self._env.step(action)


class _InItsEnvironment:
    def make_env(self, num_env=None, seed=0):
        return _Hangs(super().make_env(num_env, seed), self.GMI_id)


class HangingHolistic(_InItsEnvironment, gmi_drl.Holistic):
    pass


class HangingServing(_InItsEnvironment, Serving):
    pass


class HangingAgent(_InItsEnvironment, Agent):
    pass


class _Wont:
    """An environment whose `close` is given."""

    def __init__(self, env, close):
        self._env, self.close = env, close

    def __getattr__(self, name):
        return getattr(self._env, name)


def raise_here():
    raise RuntimeError("the simulator has gone already")


class CloseHangs(gmi_drl.Holistic):
    def make_env(self, num_env=None, seed=0):
        return _Wont(super().make_env(num_env, seed), hang_here)


class CloseRaises(gmi_drl.Holistic):
    def make_env(self, num_env=None, seed=0):
        return _Wont(super().make_env(num_env, seed), raise_here)


class CloseCrashes(gmi_drl.Holistic):
    def make_env(self, num_env=None, seed=0):
        return _Wont(super().make_env(num_env, seed), lambda: os.kill(os.getpid(), signal.SIGKILL))


class RaisesAndWontClose(CloseHangs):
    def loss(self, *args):
        raise ValueError("on purpose")


class _NeverEnds:
    """Its episodes go on for ever; it says they may take 60 steps."""

    max_episode_steps = 60

    def __init__(self, env):
        self._env = env

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, action):
        step = self._env.step(action)
        never = torch.zeros_like(step.terminated)
        return step._replace(terminated=never, truncated=never)


class EndlessEvaluation(gmi_drl.Holistic):
    def make_env(self, num_env=None, seed=0):
        env = super().make_env(num_env, seed)
        return env if num_env is None else _NeverEnds(env)


class SaysNothing(gmi_drl.DRL_role):
    """Works longer than a GMI may be silent, and never says that it does."""

    def GMI_run(self):
        time.sleep(3 * self.mgr.config.run.hang_timeout_s)
        return "done"


class SaysItOnce(gmi_drl.DRL_role):
    """Shows progress, and hangs."""

    def GMI_run(self):
        self.mgr.progress()
        hang_here()
