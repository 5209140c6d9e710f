"""Environments of every kind of space, and environments whose code is wrong, registered by name."""

import os
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces as S

PAIR = S.Box(-1.0, 1.0, (2,), np.float32)
HALF_OPEN = S.Box(np.array([0.0, -1.0], np.float32), np.array([np.inf, 1.0], np.float32))

# Whether a policy can be trained on it.
OBSERVATIONS = {
    "Vector": (True, PAIR),
    "Whole": (True, S.Box(0, 10, (3,), np.int64)),
    "Bytes": (True, S.Box(0, 255, (6,), np.uint8)),
    "Wide": (True, S.Box(0, 65535, (3,), np.uint16)),
    "Half": (True, S.Box(-1.0, 1.0, (3,), np.float16)),
    "Double": (True, S.Box(-1.0, 1.0, (3,), np.float64)),
    "Unbounded": (True, S.Box(-np.inf, np.inf, (3,), np.float32)),
    "Discrete": (True, S.Discrete(5)),
    "MultiDiscrete": (True, S.MultiDiscrete([3, 4])),
    "MultiBinary": (True, S.MultiBinary(4)),
    "Dict": (True, S.Dict(a=PAIR)),
    "EmptyDict": (False, S.Dict()),
    "Tuple": (True, S.Tuple((PAIR, S.Discrete(3)))),
    "Text": (False, S.Text(5)),
    "Sequence": (False, S.Sequence(PAIR)),
    "Graph": (False, S.Graph(PAIR, None)),
    "OneOf": (False, S.OneOf((PAIR, S.Discrete(2)))),
    "Image": (True, S.Box(0, 255, (8, 8, 3), np.uint8)),
    "Scalar": (True, S.Box(-1.0, 1.0, (), np.float32)),
    "Empty": (False, S.Box(-1.0, 1.0, (0,), np.float32)),
    "Nested": (True, S.Dict(a=S.Dict(b=PAIR), c=S.Tuple((PAIR,)))),
    "Shifted": (True, S.Dict(a=S.Discrete(3, start=4), b=S.MultiDiscrete([[2, 3], [4, 2]]))),
    "Holding": (False, S.Dict(a=PAIR, b=S.Text(5))),
}
ACTIONS = {
    "Vector": (True, PAIR),
    "Discrete": (True, S.Discrete(3, start=5)),
    "Whole": (True, S.Box(0, 10, (2,), np.int64)),
    "Half": (True, S.Box(-1.0, 1.0, (2,), np.float16)),
    "Double": (True, S.Box(-1.0, 1.0, (2,), np.float64)),
    "Unbounded": (True, S.Box(-np.inf, np.inf, (2,), np.float32)),
    "HalfOpen": (True, HALF_OPEN),
    "MultiDiscrete": (True, S.MultiDiscrete([3, 4])),
    "MultiBinary": (True, S.MultiBinary(4)),
    "Dict": (True, S.Dict(a=PAIR)),
    "Tuple": (True, S.Tuple((PAIR, PAIR))),
    "Text": (False, S.Text(5)),
    "Sequence": (False, S.Sequence(PAIR)),
    "Matrix": (True, S.Box(-1.0, 1.0, (2, 3), np.float32)),
    "Scalar": (False, S.Box(-1.0, 1.0, (), np.float32)),
    "Empty": (False, S.Box(-1.0, 1.0, (0,), np.float32)),
    "Mixed": (True, S.Tuple((S.Discrete(3, start=2), S.Box(0.0, 4.0, (2,)), S.MultiBinary(3)))),
    "Nested": (True, S.Dict(a=S.Tuple((S.MultiDiscrete([2, 3]), PAIR)), b=S.Discrete(2))),
}


class Sampled(gymnasium.Env):
    """Shows samples of its observation space, and refuses actions that are not in its own."""

    observation_space, action_space = PAIR, S.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.age = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action in self.action_space, action
        self.age += 1
        return self.observation_space.sample(), 1.0, self.age == 5, False, {}


def _raise(self, *args, **kwargs):
    raise RuntimeError("no licence file")


def _hang(self):
    """Starts a process that leaves its session, says which, and waits for ever."""
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with subprocess.Popen(command, start_new_session=True) as child:
        with open(os.environ["HANGS_TOLD"], "w") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
        time.sleep(1000)


BROKEN = {
    "InConstructor": {"__init__": _raise},
    "InReset": {"reset": _raise},
    "InStep": {"step": _raise},
    "ResetShape": {"reset": lambda self, *, seed=None, options=None: (np.zeros(5, "f4"), {})},
    "StepShape": {"step": lambda self, action: (np.zeros(5, "f4"), 1.0, False, False, {})},
    "FourParts": {"step": lambda self, action: (np.zeros(2, "f4"), 1.0, False, {})},
    "NanReset": {"reset": lambda self, *, seed=None, options=None: (np.full(2, np.nan, "f4"), {})},
    "NanStep": {"step": lambda self, action: (np.full(2, np.nan, "f4"), 1.0, False, False, {})},
    "NanReward": {"step": lambda self, action: (np.zeros(2, "f4"), np.nan, False, False, {})},
    "Dies": {"__init__": lambda self: os.kill(os.getpid(), signal.SIGSEGV)},
    "Hangs": {"__init__": _hang},
}


def _register(name, **members):
    gymnasium.register(f"{name}-v0", entry_point=type(name, (Sampled,), members))


for kind, (_, space) in OBSERVATIONS.items():
    _register(f"Shows{kind}", observation_space=space)
for kind, (_, space) in ACTIONS.items():
    _register(f"Takes{kind}", action_space=space)
for kind, members in BROKEN.items():
    _register(f"Broken{kind}", **members)
_register("CloseRaises", close=_raise)
_register("CloseHangs", close=lambda self: time.sleep(1000))


def _of_mode(self, render_mode=None):
    self.render_mode = render_mode


_DRAWS = {"__init__": _of_mode, "metadata": {"render_modes": ["rgb_array"], "render_fps": 30}}
_register("DrawRaises", **_DRAWS, render=_raise)
_SHIFTED = OBSERVATIONS["Shifted"][1]
_register("DrawsNothing", **_DRAWS, observation_space=_SHIFTED, render=lambda self: None)
_PICTURE = np.zeros((8, 8, 3), "u1")
_register("DrawnStepRaises", **_DRAWS, observation_space=_SHIFTED,
          render=lambda self: _PICTURE, step=_raise)  # fmt: skip
_register("RewardRaises", compute_reward=_raise)


def _told(self, text):
    """Shows as many numbers as the text that it is given has words."""
    self.observation_space = S.Box(-1.0, 1.0, (len(text.split()),), np.float32)


_register("Told", __init__=_told)
_PARTS = S.Tuple((ACTIONS["Whole"][1], S.Box(0.0, 1.0, (1,), np.float32)))
_register("Numbers", observation_space=OBSERVATIONS["Scalar"][1], action_space=_PARTS)


_HIGH = np.array([4.8, np.inf, 0.41887903, np.inf], np.float32)  # CartPole's


class PaysActions(Sampled):
    """Begins and goes on alike always, and the return tells which actions were taken."""

    observation_space = S.Box(-_HIGH, _HIGH)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0] * 0, {}

    def step(self, action):
        self.age += 1
        return np.zeros(4, "f4"), float(action) / 2**self.age, self.age == 20, False, {}


gymnasium.register("PaysActions-v0", entry_point=PaysActions)
