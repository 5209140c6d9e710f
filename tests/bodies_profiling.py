"""Environments that misbehave, for profiles of them (light: no torch in them)."""

import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np


class Trouble(gymnasium.Env):
    """CartPole's shapes. With `at` of them in a process, each step does what `how` says."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0
    eaten = []  # noqa: RUF012 (for good)

    def __init__(self, how="nothing", at=1, after=0, mib=0, marker=None):
        type(self).made += 1
        self.how = how if type(self).made >= at else "nothing"
        self.after, self.age, self.mib = after, 0, mib
        self.marker = marker  # a file that is there when it goes wrong

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.age += 1
        if self.age > self.after:
            if self.marker is not None:
                Path(self.marker).touch()
            getattr(self, f"_{self.how}")()
        return np.zeros(4, np.float32), 1.0, False, False, {}

    def _nothing(self):
        pass

    def _raise(self):
        raise ValueError("these are too many environments")

    def _memory(self):
        raise MemoryError

    def _eat(self):
        self.eaten.append(np.ones(self.mib << 17))

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


def in_a_cgroup(procs):
    """Two candidates that eat more than there is, and one that does not, each with its answer."""
    from gmi_drl import runtime
    from gmi_drl.launcher.start.preload import PRELOAD
    from gmi_drl.placement import load_config
    from gmi_drl.selector.tune.candidate import Ask, Candidate, DeviceSplit
    from gmi_drl.selector.tune.profile.profiler import Profiler

    Path(procs).write_text(str(os.getpid()))
    runtime.init(PRELOAD)
    try:
        for options in ({"how": "eat", "mib": 1000}, {"how": "eat", "mib": 16}, {}):
            env = {"id": "bodies_profiling:Trouble-v0", "options": options}
            algorithm = {"network": [16], "minibatches": 1, "epochs": 1}
            config = load_config({"version": 1, "env": env, "algorithm": algorithm})
            print(
                Profiler(config)(Ask(Candidate(DeviceSplit(2, "cpu"), 4, 16, 128), 0.3)),
                flush=True,
            )
    finally:
        runtime.shutdown()
