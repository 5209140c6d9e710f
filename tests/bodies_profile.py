"""Roles that profiled runs of the tests use."""

import gmi_drl
from gmi_drl.roles.telemetry import phases

PHASES = ("simulate", "infer", "train", "reduce", "send", "wait")


class Obstructs(gmi_drl.Holistic):
    """A folder stands where the trace of GMI 0 is to be."""

    def make_env(self, num_env=None, seed=0):
        if self.GMI_id == 0:
            phases.trace_path(self.mgr.context.folder, 0).mkdir(parents=True)
        return super().make_env(num_env, seed)
