"""Roles that take their time to make environments, longer than `comm.timeout_s`."""

import json
import logging
import time

import faults
import gmi_drl
from gmi_drl.roles import Agent, ServingSimulator, Trainer
from hooked import Hooked

_log = logging.getLogger("gmi_drl.late")


class _Late:
    """One GMI is late, and notes when it is done; it may be killed meanwhile."""

    late = 1

    def make_env(self, num_env=None, seed=0):
        if self.GMI_id == self.late:
            half_s = 0.75 * self.mgr.config.comm.timeout_s  # both together: longer than others wait
            time.sleep(half_s)
            faults.strike(self.GMI_id, "start", 0)
            time.sleep(half_s)
            note(made_s=time.perf_counter())
        return super().make_env(num_env, seed)


class _Begins(Hooked):
    """Notes when it takes its training to begin, and may be killed later."""

    def connected(self):
        note(began_s=time.perf_counter())

    def begin(self, iteration):
        faults.strike(self.GMI_id, "iterate", iteration)


def note(**what):
    with open(faults.folder() / "notes", "a") as file:
        file.write(json.dumps(what) + "\n")


def notes(path, key):
    found = [json.loads(line) for line in (path / "notes").read_text().splitlines()]
    return [line[key] for line in found if key in line]


class LateHolistic(_Late, _Begins, gmi_drl.Holistic):
    pass


class LateAgent(_Late, Agent):
    late = 0


class LateTrainer(_Late, _Begins, Trainer):
    pass


class LateSimulator(_Late, ServingSimulator):
    late = 0


class Fails(gmi_drl.Holistic):
    """GMI 1 raises while the other waits for it."""

    def make_env(self, num_env=None, seed=0):
        if self.GMI_id == 1:
            time.sleep(1.5 * self.mgr.config.comm.timeout_s)  # longer than others wait elsewhere
            raise ValueError("no environments")
        return super().make_env(num_env, seed)


class Logs(Hooked, gmi_drl.Holistic):
    """Logs the same but for a number in each iteration."""

    def begin(self, iteration):
        _log.warning("%d contacts were ignored", iteration + 1)


class NeverMade(gmi_drl.Holistic):
    """Tells that it makes environments, and does for ever."""

    def make_env(self, num_env=None, seed=0):
        self.mgr.report({"kind": "note", "message": "makes environments"})
        while True:
            time.sleep(1)  # until it is killed
