"""Roles for tests of runs that are resized."""

import os
import signal
import time
from dataclasses import dataclass

import gmi_drl
from gmi_drl import runtime
from gmi_drl.gmi import DEVICE_LOST
from gmi_drl.launcher.folder.resize_request import ResizeRequest, make_request
from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.roles.state import checkpoint
from hooked import Hooked
from waits import until


class Alone(gmi_drl.Holistic):
    """Trains where there is one GMI."""

    def make_env(self, num_env=None, seed=0):
        if len(self.mgr.layout.gmis) > 1:
            raise RuntimeError("only alone")
        return super().make_env(num_env, seed)


class ResizedAsItEvaluates(gmi_drl.Holistic):
    """Asks for two GMIs in the first step of the evaluation, and goes on when they are to come."""

    def make_env(self, num_env=None, seed=0):
        env = super().make_env(num_env, seed)
        if num_env is not None:
            step, folder = env.step, self.mgr.context.folder

            def first_step(action):
                env.step = step
                make_request(folder, ResizeRequest("late", ("layout.gmi_per_gpu=2",)))
                until(runtime.stop_requested)
                return step(action)

            env.step = first_step
        return env


class KilledAtTheStartOfTwo(gmi_drl.Holistic):
    """Is killed in the first life of each of two GMIs."""

    def make_env(self, num_env=None, seed=0):
        if len(self.mgr.layout.gmis) > 1 and not self.mgr.context.replaced:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().make_env(num_env, seed)


@dataclass(frozen=True)
class DyingFolder(RunFolder):
    """Kills its process when it has written a file of this name."""

    dies_at: str

    def write_atomic(self, name, text):
        super().write_atomic(name, text)
        if name == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


class LosesADevice(Hooked, gmi_drl.Holistic):
    """Leaves as after an uncorrectable error of the second of two devices, from iteration 4 on.

    So does every process that takes its place.
    """

    lost = 1

    def begin(self, iteration):
        if iteration == 4 and self.is_there:
            self.mark.touch()
        self.leave_if_lost()

    def make_env(self, num_env=None, seed=0):
        self.leave_if_lost()
        return super().make_env(num_env, seed)

    @property
    def is_there(self):
        return self.gpu_id == self.lost and len(self.mgr.layout.topology.devices) > 1

    @property
    def mark(self):
        return self.mgr.context.folder / "lost"

    def leave_if_lost(self):
        if self.is_there and self.mark.exists():
            os._exit(DEVICE_LOST)


class LosesADeviceInALongIteration(LosesADevice):
    """The same, while the GMI of the other one is in a long rollout."""

    def begin(self, iteration):
        super().begin(iteration)
        if iteration == 4 and len(self.mgr.layout.topology.devices) > 1:
            while not self.mark.exists():
                time.sleep(0.01)  # between two looks
            time.sleep(6)  # in place of the rollout, longer than `comm.timeout_s`


class LosesTheFirstDevice(LosesADevice):
    """The same on the first one, where metrics and checkpoints are written."""

    lost = 0


class LosesItAtOnce(LosesADevice):
    """The same before there is anything to go on from."""

    def make_env(self, num_env=None, seed=0):
        if self.is_there:
            self.mark.touch()
        return super().make_env(num_env, seed)


class LosesItsHeirToo(LosesADevice):
    """The same, and the one that saves what is left is killed as it does, once."""

    def hook(self, optimizer):
        super().hook(optimizer)
        write = checkpoint.write_part

        def dies_if_lost(checkpoints, iteration, name, state):
            # The checkpoint of iteration 3 may still be being written: it is to be there.
            two = len(self.mgr.layout.topology.devices) > 1
            if iteration > 3 and two and self.mark.exists():
                os.kill(os.getpid(), signal.SIGKILL)
            write(checkpoints, iteration, name, state)

        checkpoint.write_part = dies_if_lost
