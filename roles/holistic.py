"""The holistic role (TCG_EX): simulator, agent and trainer of PPO in one GMI.

Every GMI of the run goes through the same loop and meets the others three times in an iteration:
to merge the moments of what was seen, to reduce each minibatch's gradient, and to agree on how
far the run is. The launcher is told, never asked.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

from gmi_drl.comm import assert_identical
from gmi_drl.placement import hidden_sizes

from . import saving
from .envs.protocol import VecEnv
from .errors import CheckpointError
from .evaluate import evaluate_together
from .normalize import RunningNormalizer
from .policy import ActorCritic, distribution_for, observation_width
from .ppo import Learner, LossParts, ppo_loss
from .progress import MetricsLog, Progress
from .role import DRL_role
from .rollout import Collector
from .targets import Targets


class Holistic(DRL_role):
    """PPO on co-located GMIs. Override `make_env`, `make_policy` or `loss` to change it."""

    # What a subclass may replace -----------------------------------------------------------

    def make_env(self, num_env: int | None = None, seed: int = 0) -> VecEnv:
        """The environments of this GMI; `num_env` and `seed` are given for evaluation."""
        return self.mgr.make_env(num_env, seed)

    def make_policy(self, env: VecEnv, generator: torch.Generator) -> ActorCritic:
        """The network to train; every GMI must build the same one from `generator`."""
        settings = self.mgr.config.algorithm
        return ActorCritic(
            observation_width(env.observation_space),
            distribution_for(env.action_space),
            hidden_sizes(settings.network),
            settings.activation,
            settings.init_log_std,
            generator,
        )

    def loss(self, *args: Any) -> LossParts:
        """The loss of one minibatch; see `gmi_drl.roles.ppo.ppo_loss` for the arguments."""
        return ppo_loss(*args)

    # The loop ------------------------------------------------------------------------------

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Train until the configured steps are done or the launcher asks to stop."""
        if params:
            names = ", ".join(sorted(params))
            raise TypeError(f"{type(self).__name__}.GMI_run takes no parameter {names}.")
        self._setup()
        try:
            while not self._finished:
                self._iterate()
            self._save(final=True)
            return self._evaluate()
        finally:
            self._env.close()
            if self._log is not None:
                self._log.close()

    def _setup(self) -> None:
        config, context = self.mgr.config, self.mgr.context
        algorithm, device = config.algorithm, context.device
        self._env = self.make_env()
        shared = torch.Generator().manual_seed(config.run.seed)  # the same on every GMI
        self._own = torch.Generator(device).manual_seed(self.mgr.seed(1))
        self._policy = self.make_policy(self._env, shared).to(device)
        obs_dim = observation_width(self._env.observation_space)
        self._obs_norm = (
            RunningNormalizer(obs_dim, clip=10.0, device=device)
            if algorithm.normalize_observation
            else None
        )
        self._value_norm = (
            RunningNormalizer(1, clip=float("inf"), device=device)
            if algorithm.normalize_value
            else None
        )
        self._collector = Collector(
            self._env,
            self._policy,
            self._obs_norm,
            self._value_norm,
            horizon=algorithm.horizon,
            gamma=algorithm.gamma,
            reward_scale=algorithm.reward_scale,
            bootstrap_time_limit=algorithm.bootstrap_time_limit,
            generator=self._own,
        )
        rollout = self._collector.rollout
        self._targets = Targets(rollout, algorithm, self._value_norm, self.group)
        self._learner = Learner(
            self._policy,
            rollout.columns,
            rollout.reward.numel(),
            algorithm,
            lambda numel: self.group.bucket("gradient", numel, torch.float32),
            self._own,
            self.loss,
        )
        self._progress = Progress(self.group)
        self._iteration = self._steps = 0
        self._saved = -1  # the iteration of the last checkpoint this process wrote
        self._trained_s = 0.0
        self._finished = self._stopped = False
        self._saver = (
            None
            if context.folder is None
            else saving.Saver(context.folder, self.GMI_id, self.group)
        )
        if context.resume is not None:
            self._restore()
        first = self.group.rank == 0 and context.folder is not None
        self._log = MetricsLog(context.folder, self._iteration) if first else None  # type: ignore[arg-type]
        self._steps_per_iteration = algorithm.horizon * sum(
            gmi.num_env for gmi in self.mgr.layout.gmis
        )
        self._began = perf_counter()

    def _iterate(self) -> None:
        self._set_learning_rate()
        simulate_s, infer_s = self._collector.collect(self._iteration)
        start = perf_counter()
        rollout = self._collector.rollout
        moments, gather_s = self._targets.fill(rollout)
        stats, reduce_s = self._learner.update(rollout.flat, rollout.log_std)
        if self._obs_norm is not None:  # only now: this rollout was seen through the old statistics
            self._obs_norm.update(moments)
        reduce_s += gather_s
        train_s = perf_counter() - start - reduce_s
        self._iteration += 1
        self._steps += self._steps_per_iteration
        self._report((simulate_s, infer_s, train_s, reduce_s), stats)
        run, every = self.mgr.config.run, self.mgr.config.comm.checksum_every
        if every and self._iteration % every == 0:
            parameters = self._learner.parameters
            assert_identical(
                self.group, parameters.data.detach(), parameters.names, parameters.offsets,
                self._iteration,
            )  # fmt: skip
        if run.checkpoint_every and self._iteration % run.checkpoint_every == 0:
            self._save()

    def _set_learning_rate(self) -> None:
        settings = self.mgr.config.algorithm
        if settings.schedule == "linear":
            left = 1.0 - self._steps / self.mgr.config.run.total_steps
            self._learner.learning_rate = settings.learning_rate * max(left, 0.0)

    def _report(self, phases: tuple[float, ...], stats: dict[str, float]) -> None:
        """Tell the other GMIs and the launcher; decide together whether this was the last one."""
        run = self.mgr.config.run
        agreed = self._progress.agree(
            self._collector.episodes.drain(), phases, self.mgr.stop_requested()
        )
        reached = (
            run.target_return is not None
            and agreed.return_mean is not None
            and agreed.return_mean >= run.target_return
        )
        self._stopped = agreed.stop
        self._finished = self._stopped or reached or self._steps >= run.total_steps
        if self._log is None:
            return
        metrics = {
            "iteration": self._iteration,
            "steps": self._steps,
            "time_s": self._time_s,
            "steps_per_s": self._steps_per_iteration / sum(phases),
            **agreed.metrics,
            **stats,
        }
        due = self._iteration % run.log_every == 0 or self._finished
        if due and (failure := self._log.write(metrics)):
            self.mgr.report({"kind": "warning", "message": failure})
        self.mgr.report({"kind": "iteration", **metrics, "gmi_seconds": agreed.gmi_seconds})

    @property
    def _time_s(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._trained_s + perf_counter() - self._began

    # Checkpoints and evaluation ------------------------------------------------------------

    def _save(self, final: bool = False) -> None:
        """Write a checkpoint; one that fails is reported, and fatal only at the end."""
        if self._saver is None or self._saved == self._iteration:
            return
        manifest = {
            "steps": self._steps,
            "gmis": self._gmis(),
            "environment": self.mgr.config.env.id,
        }
        failure = self._saver.save(self._iteration, self._own_state(), self._shared_state, manifest)
        if failure and final:
            raise CheckpointError(failure)
        if failure:
            self.mgr.report({"kind": "warning", "message": failure})
        else:
            self._saved = self._iteration

    def _gmis(self) -> list[list[int]]:
        return [[gmi.gmi_id, gmi.num_env] for gmi in self.mgr.layout.gmis]

    def _shared_state(self) -> dict[str, Any]:
        return {
            "parameters": self._learner.parameters.data.detach().clone(),
            "optimizer": self._learner.optimizer.state_dict(),
            "observation_normalizer": self._obs_norm and self._obs_norm.state_dict(),
            "value_normalizer": self._value_norm and self._value_norm.state_dict(),
            "episodes": self._progress.state_dict(),
            "iteration": self._iteration,
            "steps": self._steps,
            "trained_s": self._time_s,
        }

    def _own_state(self) -> dict[str, Any]:
        return {
            "env": self._env.state_dict(),
            "observation": self._collector.observation,
            "episodes": self._collector.episodes.state_dict(),
            "generator": self._own.get_state(),
            "global_generator": torch.get_rng_state(),  # a loss of the user's own may draw from it
        }

    def _restore(self) -> None:
        context = self.mgr.context
        assert context.resume is not None
        found = saving.read(context.resume, self._gmis())
        shared = found.load("shared")
        with torch.no_grad():
            self._learner.parameters.data.copy_(shared["parameters"])
        self._learner.optimizer.load_state_dict(shared["optimizer"])
        if self._obs_norm is not None:
            self._obs_norm.load_state_dict(shared["observation_normalizer"])
        if self._value_norm is not None:
            self._value_norm.load_state_dict(shared["value_normalizer"])
        self._progress.load_state_dict(shared["episodes"])
        self._iteration, self._steps = shared["iteration"], shared["steps"]
        self._trained_s = shared["trained_s"]
        self._finished = self._steps >= self.mgr.config.run.total_steps
        own = found.load(f"gmi{self.GMI_id}")
        self._own.set_state(own["generator"])
        torch.set_rng_state(own["global_generator"])
        if own["env"] is None:  # this adapter cannot save its environments: new episodes begin
            message = f"{self.mgr.config.env.id} cannot be saved; its episodes begin anew"
            self.mgr.report({"kind": "warning", "message": message})
            return
        self._env.load_state_dict(own["env"])
        self._collector.observation = own["observation"].to(context.device)
        self._collector.episodes.load_state_dict(own["episodes"])

    def _evaluate(self) -> dict[str, Any]:
        """Final result: counters, and the mean return of whole episodes of the greedy policy."""
        result = {"iteration": self._iteration, "steps": self._steps, "stopped": self._stopped}
        episodes = self.mgr.config.run.eval_episodes
        if not episodes or self._stopped:
            return result
        env = self.make_env(-(-episodes // self.group.size), seed=2)
        try:
            found = evaluate_together(
                env, self._policy, self._obs_norm, self.group, self.mgr.stop_requested
            )
            return result | found
        finally:
            env.close()
