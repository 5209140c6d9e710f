"""The roles of training: `Holistic` in one GMI, or `Agent` and `Trainer` in GMIs of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.evaluators.gradients import GradientLoop
from gmi_drl.roles.evaluators.rollout_worker import RolloutLoop
from gmi_drl.roles.evaluators.sample_sender import SampleSender
from gmi_drl.roles.optimizers import make_optimizer, samples_in_turn
from gmi_drl.roles.optimizers.optimizer import Optimizer
from gmi_drl.roles.seeds import EVALUATION
from gmi_drl.roles.state.training import Training

from .acting import ActingRole


class Trainer(ActingRole):
    """Trains by the config's algorithm and optimizer. Override `make_policy` or `loss`."""

    recoverable = says_set_up = True

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Trains until the configured steps are done or the launcher asks to stop."""
        self.check_no_params(params)
        return self.train()

    def make_optimizer(self) -> Optimizer:
        """Returns the optimizer of the config, with what this role makes."""
        return make_optimizer(self)

    def train(self) -> dict[str, Any]:
        """Trains to the end, or as far as the pause of its context says."""
        optimizer, make_env = self.make_optimizer(), partial(self.make_env, seed=EVALUATION)
        with self.use_threads():
            return Training(self.mgr, optimizer, self.description, make_env).run()


class Holistic(Trainer):
    """Simulator, agent and trainer in one GMI (TCG_EX). Override `make_env` besides."""


class Agent(ActingRole):
    """Simulator and agent of tdg_ex and decoupled. Override `make_env` or `make_policy`."""

    recoverable = says_set_up = True

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Collects, in turn with the trainer or all the time, until training is done."""
        self.check_no_params(params)
        env = self.build_with_env()
        sampler = self.make_sampler(env)
        self.mgr.await_set_up()
        with self.use_threads():
            return sampler.run()

    def make_sampler(self, env: VecEnv) -> RolloutLoop | SampleSender:
        """Returns what samples in `env` as the optimizer wants it, with the policy built."""
        if self.mgr.config.algorithm.sends_gradients:
            return GradientLoop(self, env)
        return (RolloutLoop if samples_in_turn(self.mgr.config) else SampleSender)(self, env)
