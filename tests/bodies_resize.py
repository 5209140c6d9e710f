"""Roles for tests of runs that are resized."""

import os
import signal
from dataclasses import dataclass

import gmi_drl
from gmi_drl.launcher.folder.run_folder import RunFolder


class Alone(gmi_drl.Holistic):
    """Trains where there is one GMI."""

    def make_env(self, num_env=None, seed=0):
        if len(self.mgr.layout.gmis) > 1:
            raise RuntimeError("only alone")
        return super().make_env(num_env, seed)


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
