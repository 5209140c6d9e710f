"""The role that simulates and infers for trainers in other GMIs."""

from __future__ import annotations

from typing import Any

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.evaluators.rollout_worker import RolloutLoop
from gmi_drl.roles.evaluators.sample_sender import SampleSender
from gmi_drl.roles.optimizers import samples_in_turn

from .acting import ActingRole


class Agent(ActingRole):
    """Simulator and agent of templates tdg_ex and decoupled.

    Override `make_env` or `make_policy` to change it.
    """

    recoverable = says_set_up = True

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Collect, in turn with the trainer or all the time, until training is done."""
        self.check_no_params(params)
        env = self.make_env()
        self.mgr.close_later(env.close)
        self.build(env)
        sampler = self.make_sampler(env)
        self.mgr.await_set_up()
        return sampler.run()

    def make_sampler(self, env: VecEnv) -> RolloutLoop | SampleSender:
        """Returns what samples in `env` as the optimizer wants it, with the policy built."""
        return (RolloutLoop if samples_in_turn(self.mgr.config) else SampleSender)(self, env)
