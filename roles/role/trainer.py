"""The roles that train: `Holistic` with environments of its own, `Trainer` with those of others."""

from __future__ import annotations

from typing import Any

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.optimizers import make_optimizer
from gmi_drl.roles.optimizers.optimizer import Optimizer
from gmi_drl.roles.state.training import Pause, Training

from .acting import ActingRole


class Trainer(ActingRole):
    """Trains by the algorithm and the optimizer of the config.

    Override `make_policy` or `loss` to change it.
    """

    recoverable = says_set_up = True

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Train until the configured steps are done or the launcher asks to stop."""
        self.check_no_params(params)
        return self.train()

    def make_optimizer(self) -> Optimizer:
        """The optimizer of the config, with what this role makes."""
        return make_optimizer(self)

    def train(self, pause: Pause | None = None) -> dict[str, Any]:
        """Train to the end, or as far as `pause` says."""
        optimizer = self.make_optimizer()

        def evaluation_env(num_env: int) -> VecEnv:
            return self.make_env(num_env, seed=2)

        return Training(self.mgr, optimizer, self.description, evaluation_env, pause).run()


class Holistic(Trainer):
    """Simulator, agent and trainer in one GMI (TCG_EX).

    Override `make_env`, `make_policy` or `loss` to change it.
    """
