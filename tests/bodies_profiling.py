"""Environments that misbehave, for profiles of them (light: no torch in them)."""

import os
import signal
import time

import gymnasium
import numpy as np


class Trouble(gymnasium.Env):
    """CartPole's shapes. With `at` of them in a process, each step does what `how` says."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, how="nothing", at=1, after=0):
        type(self).made += 1
        self.how = how if type(self).made >= at else "nothing"
        self.after, self.age = after, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.age += 1
        if self.age > self.after:
            getattr(self, f"_{self.how}")()
        return np.zeros(4, np.float32), 1.0, False, False, {}

    def _nothing(self):
        pass

    def _raise(self):
        raise ValueError("these are too many environments")

    def _memory(self):
        raise MemoryError

    def _exit(self):
        print("physics exploded", flush=True)
        os._exit(3)

    def _kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def _hang(self):
        time.sleep(3600)  # until it is killed

    def _spin(self):
        while True:
            pass

    def _sleep(self):
        time.sleep(0.005)  # what is measured: a step takes as long, whatever the machine does


gymnasium.register("Trouble-v0", entry_point=Trouble)
