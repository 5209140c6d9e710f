"""What GMIs run in tests of the gang."""

import os
import signal
import time

import faults
from gmi_drl import runtime
from gmi_drl.comm.errors import PeerLeft
from gmi_drl.gmi import DEVICE_LOST


class Stepper:
    """Takes steps, telling each one, until it is asked to stop; fails where it is told to."""

    def __init__(self, spec, script=()):
        self.spec = spec
        self.script = script
        faults.inject(script, spec.gmi_id, -1)  # while it is built

    def ping(self, number=0):
        return self.spec.gmi_id + number

    def pid(self):
        return os.getpid()

    def slice(self):
        import torch

        return os.sched_getaffinity(0), torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    def run(self, steps=None):
        step = 0
        while step != steps and not runtime.stop_requested():
            print(f"step {step}")
            faults.inject(self.script, self.spec.gmi_id, step)
            runtime.emit(step)
            step += 1
            time.sleep(0.001)  # the work of a step
        return step

    def deaf(self):
        runtime.emit("deaf")
        faults.inject([faults.hang(self.spec.gmi_id, 0)], self.spec.gmi_id, 0)

    def follow(self, pid):
        """Fails as soon as another process is gone, as a peer in a reduction would."""
        while os.path.exists(f"/proc/{pid}/exe") and not runtime.stop_requested():
            try:
                os.readlink(f"/proc/{pid}/exe")
            except OSError:
                break
            time.sleep(0.0005)  # between two looks; the state is what it waits for
        if not runtime.stop_requested():
            raise RuntimeError(f"peer {pid} is gone")

    def fail_behind(self, path):
        """GMI 0 says that its peer has left; GMI 1, that peer, raises its own error after that."""
        if self.spec.gmi_id == 0:
            path.touch()
            raise PeerLeft("bucket", 1, "gmi 1", "the group was closed")
        while not path.exists():
            time.sleep(0.0005)  # between two looks; the file is what it waits for
        raise ValueError("on purpose")

    def lose_the_device_behind(self, path):
        """GMI 0 raises what its device says; GMI 1 finds after that that the device is lost."""
        if self.spec.gmi_id == 0:
            raise RuntimeError("on purpose")
        while not path.exists():
            time.sleep(0.0005)  # between two looks; the file is what it waits for
        os._exit(DEVICE_LOST)

    def die_once(self, path):
        """Killed at the first time; then the pid that answers, and the slice it has."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return os.getpid(), os.sched_getaffinity(0), os.environ["OMP_NUM_THREADS"]
        os.kill(os.getpid(), signal.SIGKILL)
