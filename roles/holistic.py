"""The holistic role (TCG_EX): simulator, agent and trainer of PPO in one GMI.

Every GMI of the run goes through the same loop and meets the others three times in an iteration:
to merge the moments of what was seen, to reduce each minibatch's gradient, and to agree on how
far the run is. The launcher is told, never asked.

A GMI may be killed and come back at any point (docs/recovery.md): whoever meets next is told so,
and all assemble anew behind the last iteration that every survivor has finished.
"""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

import torch

from gmi_drl.comm import GroupFinished, GroupReformed, assert_identical
from gmi_drl.placement import hidden_sizes

from . import recovery, saving
from .envs.protocol import VecEnv
from .errors import CheckpointError
from .evaluate import evaluate_together
from .learned import Learned
from .normalize import RunningNormalizer
from .policy import ActorCritic, distribution_for, observation_width
from .ppo import Learner, LossParts, ppo_loss
from .progress import MetricsLog, Progress
from .role import DRL_role
from .rollout import Collector
from .targets import Targets


class Holistic(DRL_role):
    """PPO on co-located GMIs. Override `make_env`, `make_policy` or `loss` to change it."""

    recoverable = True

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
            while True:
                try:
                    return self._train()
                except GroupReformed:
                    continue
                except GroupFinished as done:  # this GMI died between the end and its answer
                    found: dict[str, Any] = json.loads(done.outcome)
                    return found
        finally:
            self._env.close()
            if self._log is not None:
                self._log.close()

    def _train(self) -> dict[str, Any]:
        """From where the group stands to the end of the run; begun anew when it is re-formed."""
        self._assemble()
        while True:
            self._snapshots.keep(self._iteration, self._state())
            every = self.mgr.config.run.checkpoint_every
            if every and self._iteration and self._iteration % every == 0:
                self._save()
            if self._finished:
                break
            self._iterate()
        self._save(final=True)
        result = self._evaluate()
        self.group.finish(json.dumps(result))
        return result

    def _setup(self) -> None:
        """Everything that is this GMI's own; the group is not needed for it."""
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
        self._learner = Learner(
            self._policy, rollout.columns, rollout.reward.numel(), algorithm, self._own, self.loss
        )
        self._progress = Progress()
        self._learned = Learned(self._learner, self._obs_norm, self._value_norm, self._progress)
        self._snapshots = recovery.Snapshots()
        self._saver = (
            None
            if context.folder is None
            else saving.Saver(context.folder, self.GMI_id, self.group, context.session)
        )
        self._log: MetricsLog | None = None
        self._metrics: dict[str, Any] | None = None  # of the last iteration, if they are logged
        self._iteration = self._steps = 0
        self._saved = -1  # the iteration of the last checkpoint of this launch
        self._trained_s, self._began = 0.0, perf_counter()
        self._finished = self._stopped = False
        self._steps_per_iteration = algorithm.horizon * sum(
            gmi.num_env for gmi in self.mgr.layout.gmis
        )

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
        every = self.mgr.config.comm.checksum_every
        if every and self._iteration % every == 0:
            self._check_identical()

    def _check_identical(self) -> None:
        parameters = self._learner.parameters
        assert_identical(
            self.group, parameters.data.detach(), parameters.names, parameters.offsets,
            self._iteration,
        )  # fmt: skip

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
        metrics = {
            "iteration": self._iteration,
            "steps": self._steps,
            "time_s": self._time_s,
            "steps_per_s": self._steps_per_iteration / sum(phases),
            **agreed.metrics,
            **stats,
        }
        due = self._iteration % run.log_every == 0 or self._finished
        self._metrics = metrics if due else None
        if self._log is None:
            return
        if due and (failure := self._log.write(metrics)):
            self.mgr.report({"kind": "warning", "message": failure})
        self.mgr.report({"kind": "iteration", **metrics, "gmi_seconds": agreed.gmi_seconds})

    @property
    def _time_s(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._trained_s + perf_counter() - self._began

    # Where the group stands ----------------------------------------------------------------

    def _assemble(self) -> None:
        """Come to one state with the other GMIs, at the beginning and when one was restarted."""
        self.group.reform()
        if self._saver is not None:
            self._saver.mend()
        found = recovery.agree(self.group, self._snapshots)
        if found is None:
            self._load_checkpoint()
        else:
            kept = self._snapshots.get(found.iteration)
            self._take_over(recovery.spread(self.group, found.source, kept))
        self._targets = Targets(
            self._collector.rollout, self.mgr.config.algorithm, self._value_norm, self.group
        )
        self._learner.connect(self.group)
        self._progress.connect(self.group)
        if self.group.generation:
            self._check_identical()
        folder = self.mgr.context.folder
        if self.group.rank == 0 and folder is not None:
            if self._log is not None:
                self._log.close()
            self._log = MetricsLog(folder, self._iteration, self._metrics)

    def _state(self) -> dict[str, Any]:
        """What a GMI that comes back needs to go on as if it had been there."""
        return {
            "learned": self._learned.state_dict(),
            "iteration": self._iteration,
            "steps": self._steps,
            "finished": self._finished,
            "stopped": self._stopped,
            "metrics": self._metrics,
            "trained_s": self._trained_s,
            "began": self._began,  # all GMIs have the same clock
        }

    def _take_over(self, state: dict[str, Any]) -> None:
        self._learned.load_state_dict(state["learned"])
        self._iteration, self._steps = state["iteration"], state["steps"]
        self._finished, self._stopped = state["finished"], state["stopped"]
        self._metrics = state["metrics"]
        self._trained_s, self._began = state["trained_s"], state["began"]
        self._saved = -1
        # At once, and not only at the next iteration: should the one that gave it die just now,
        # this GMI is one that holds it.
        self._snapshots.keep(self._iteration, self._state())
        self._snapshots.forget_after(self._iteration)

    def _load_checkpoint(self) -> None:
        """Go on from the last checkpoint: this launch's, or else the one to resume from."""
        newest = None if self._saver is None else self._saver.newest()
        path = newest or self.mgr.context.resume
        if path is None:
            return
        found = saving.read(path, self._gmis())
        shared = found.load("shared")
        self._learned.load_state_dict(shared)
        self._iteration, self._steps = shared["iteration"], shared["steps"]
        self._saved = self._iteration
        self._trained_s, self._began = shared["trained_s"], perf_counter()
        self._finished = self._steps >= self.mgr.config.run.total_steps
        own = found.load(f"gmi{self.GMI_id}")
        self._own.set_state(own["generator"])
        torch.set_rng_state(own["global_generator"])
        if own["env"] is None:  # this adapter cannot save its environments: new episodes begin
            message = f"{self.mgr.config.env.id} cannot be saved; its episodes begin anew"
            self.mgr.report({"kind": "warning", "message": message})
            return
        self._env.load_state_dict(own["env"])
        self._collector.observation = own["observation"].to(self.mgr.context.device)
        self._collector.episodes.load_state_dict(own["episodes"])

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
        exists, failure = self._saver.save(
            self._iteration, self._own_state(), self._shared_state, manifest
        )
        if exists:
            self._saved = self._iteration
        elif failure and final:
            raise CheckpointError(failure)
        elif failure:
            self.mgr.report({"kind": "warning", "message": failure})

    def _gmis(self) -> list[list[int]]:
        return [[gmi.gmi_id, gmi.num_env] for gmi in self.mgr.layout.gmis]

    def _shared_state(self) -> dict[str, Any]:
        counted = {"iteration": self._iteration, "steps": self._steps, "trained_s": self._time_s}
        return self._learned.state_dict() | counted

    def _own_state(self) -> dict[str, Any]:
        return {
            "env": self._env.state_dict(),
            "observation": self._collector.observation,
            "episodes": self._collector.episodes.state_dict(),
            "generator": self._own.get_state(),
            "global_generator": torch.get_rng_state(),  # a loss of the user's own may draw from it
        }

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
