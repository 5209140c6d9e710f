"""A role whose work goes the way of a GPU on the CPU, launched anew or recorded and replayed."""

import dataclasses

import gmi_drl
from device_only import RecordedPool
from gmi_drl.roles.optimizers import descent, learner
from gmi_drl.roles.policies import recurrent_steps
from gmi_drl.roles.samples import collector


class Launched(gmi_drl.Holistic):
    """Everything stays on the device; nothing is captured."""

    capturable_loss = True
    loss_stats = ("mean_value",)

    def loss(self, policy, rows, row_layout, *rest):
        parts = super().loss(policy, rows, row_layout, *rest)
        stats = {**parts.stats, "mean_value": rows[:, row_layout.value].mean()}
        return dataclasses.replace(parts, stats=stats)

    def make_env(self, num_env=None, seed=0):
        env = super().make_env(num_env, seed)
        env._on_host = False
        return env

    def make_optimizer(self):
        for module in (
            collector,
            descent,
            learner,
            recurrent_steps,
        ):  # of this process, which is the GMI's own
            module.static_on = lambda device, wanted=None: True
        return super().make_optimizer()


class Captured(Launched):
    """The same, captured."""

    def make_optimizer(self):
        self._shared_pool = RecordedPool()
        return super().make_optimizer()
