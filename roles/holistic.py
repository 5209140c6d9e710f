"""The holistic role (TCG_EX): simulator, agent and trainer of PPO in one GMI.

Every GMI of the run goes through the same loop and meets the others three times in an iteration:
to merge the moments of what was seen, to reduce each minibatch's gradient, and to agree on how
far the run is. The launcher is told, never asked.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

from .learned import Learned
from .policy import FlatParameters
from .ppo import Learner, LossParts, ppo_loss
from .progress import Progress
from .rollout import Collector
from .targets import Targets
from .training import Training


class Holistic(Training):
    """PPO on co-located GMIs. Override `make_env`, `make_policy` or `loss` to change it."""

    def loss(self, *args: Any) -> LossParts:
        """The loss of one minibatch; see `gmi_drl.roles.ppo.ppo_loss` for the arguments."""
        return ppo_loss(*args)

    # The loop ------------------------------------------------------------------------------

    def _setup(self) -> None:
        config, device = self.mgr.config, self.mgr.context.device
        algorithm = config.algorithm
        self._env = self.make_env()
        self._own = torch.Generator(device).manual_seed(self.mgr.seed(1))
        self._policy, self._normalizers = self._build_policy(self._env)
        observations, values = self._normalizers.observations, self._normalizers.values
        self._collector = Collector(
            self._env,
            self._policy,
            observations,
            values,
            horizon=algorithm.horizon,
            gamma=algorithm.gamma,
            reward_scale=algorithm.reward_scale,
            bootstrap_time_limit=algorithm.bootstrap_time_limit,
            generator=self._own,
        )
        rollout = self._collector.rollout
        self._learner = Learner(
            self._policy, rollout.columns, rollout.reward.numel(), algorithm, self._own, self.loss
        )
        self._progress = Progress()
        self._learned = Learned(self._learner, observations, values, self._progress)
        self._steps_per_iteration = algorithm.horizon * sum(
            gmi.num_env for gmi in self.mgr.layout.gmis
        )

    def _connect(self) -> None:
        self._targets = Targets(
            self._collector.rollout, self.mgr.config.algorithm, self._normalizers.values, self.group
        )
        self._learner.connect(self.group)
        self._progress.connect(self.group)

    def _iterate(self) -> None:
        self._set_learning_rate()
        simulate_s, infer_s = self._collector.collect(self._iteration)
        start = perf_counter()
        rollout = self._collector.rollout
        moments, gather_s = self._targets.fill(rollout)
        stats, reduce_s = self._learner.update(rollout.flat, rollout.log_std)
        if (seen := self._normalizers.observations) is not None:
            seen.update(moments)  # only now: this rollout was seen through the old statistics
        reduce_s += gather_s
        train_s = perf_counter() - start - reduce_s
        self._iteration += 1
        self._steps += self._steps_per_iteration
        self._report((simulate_s, infer_s, train_s, reduce_s), stats)
        self._check_identical_when_due()

    def _set_learning_rate(self) -> None:
        settings = self.mgr.config.algorithm
        if settings.schedule == "linear":
            left = 1.0 - self._steps / self.mgr.config.run.total_steps
            self._learner.learning_rate = settings.learning_rate * max(left, 0.0)

    def _report(self, phases: tuple[float, ...], stats: dict[str, float]) -> None:
        """Tell the other GMIs and the launcher; decide together whether this was the last one."""
        agreed = self._progress.agree(
            self._collector.episodes.drain(), phases, self.mgr.stop_requested()
        )
        self._stopped = agreed.stop
        speed = {"steps_per_s": self._steps_per_iteration / sum(phases)}
        self._conclude(speed | agreed.metrics | stats, agreed.gmi_seconds)

    # What is this GMI's own ----------------------------------------------------------------

    def _parameters(self) -> FlatParameters:
        return self._learner.parameters

    def _own_state(self) -> dict[str, Any]:
        return {
            "env": self._env.state_dict(),
            "observation": self._collector.observation,
            "episodes": self._collector.episodes.state_dict(),
            "generator": self._own.get_state(),
            "global_generator": torch.get_rng_state(),  # a loss of the user's own may draw from it
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self._own.set_state(state["generator"])
        torch.set_rng_state(state["global_generator"])
        if state["env"] is None:  # this adapter cannot save its environments: new episodes begin
            self._warn(f"{self.mgr.config.env.id} cannot be saved; its episodes begin anew")
            return
        self._env.load_state_dict(state["env"])
        self._collector.observation = state["observation"].to(self.mgr.context.device)
        self._collector.episodes.load_state_dict(state["episodes"])

    def _close(self) -> None:
        self._env.close()
