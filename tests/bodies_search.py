"""Roles that trials of a search are given: one that can be held, one that fails."""

import json
import os
import signal

from gmi_drl.roles import Holistic, Trainer
from hooked import Hooked
from waits import until


class Held(Hooked, Holistic):
    """Stops before iteration 3 until a file `go` is there; says in `pid` that it does, and who."""

    def begin(self, iteration):
        if iteration == 3:
            folder = self.mgr.context.folder
            (folder / ".pid").write_text(str(os.getpid()))
            (folder / ".pid").rename(folder / "pid")
            until((folder / "go").exists, "that somebody lets it go")


class Tells(Hooked, Holistic):
    """Writes the random numbers that its first iteration begins with, and what it sees then."""

    def begin(self, iteration):
        path = self.mgr.context.folder / "drawn.json"
        if not path.exists():
            own, replay = self.optimizer.own_state(), self.optimizer._replay
            drawn = {name: own[name].tolist() for name in DRAWN}
            rows = 0 if replay is None else len(replay._replay)
            path.write_text(json.dumps({"rows": rows, **drawn}))


DRAWN = ("shuffles", "global_generator", "generator", "observation")


class FailsAboveATenth(Hooked, Holistic):
    """Raises in its second iteration if its learning rate is above 0.1."""

    def begin(self, iteration):
        if iteration == 1 and self.mgr.config.algorithm.learning_rate > 0.1:
            raise ValueError("a rate of no use")


class DiesOnce(Hooked, Trainer):
    """Is killed in the second iteration of one run of a search."""

    def begin(self, iteration):
        died = self.mgr.context.folder.parents[1] / "died"
        if iteration == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Pending:
    """No role at all."""
