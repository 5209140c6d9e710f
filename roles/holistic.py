"""The holistic role (TCG_EX): simulator, agent and trainer of PPO in one GMI.

Every GMI of the run goes through the same loop and meets the others three times in an iteration:
to merge the moments of what was seen, to reduce each minibatch's gradient, and to agree on how
far the run is. The launcher is told, never asked.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gmi_drl.comm import assert_identical
from gmi_drl.placement import hidden_sizes

from . import checkpoint
from .envs.protocol import VecEnv
from .evaluate import evaluate
from .gae import gae
from .normalize import RunningNormalizer, batch_moments, merge_moments
from .policy import ActorCritic, distribution_for, observation_width
from .ppo import Learner, LossParts, ppo_loss
from .progress import MetricsLog, ReturnWindow
from .role import DRL_role
from .rollout import Collector

_KEPT_CHECKPOINTS = 3
_PHASES = ("simulate_s", "infer_s", "train_s", "reduce_s")
_SYNC = ("stop", "episodes", "return_sum", "length_sum", *_PHASES)


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
        self._setup()
        try:
            while not self._finished:
                self._iterate()
            self._checkpoint(final=True)
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
        self._own = torch.Generator().manual_seed(self.mgr.seed(1))
        self._policy = self.make_policy(self._env, shared)
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
        self._advantage = torch.zeros_like(rollout.reward)
        self._learner = Learner(
            self._policy,
            rollout.columns,
            rollout.reward.numel(),
            algorithm,
            lambda numel: self.group.bucket("gradient", numel, torch.float32),
            self._own,
            self.loss,
        )
        self._obs_moments = torch.zeros(1 + 2 * obs_dim, dtype=torch.float64)
        moments = 3 + 3 + self._obs_moments.numel()
        self._moments = self.group.bucket("moments", moments, torch.float64)
        self._sync = self.group.bucket("sync", len(_SYNC), torch.float64)
        self._window = ReturnWindow()
        self._iteration = self._steps = 0
        self._trained_s = 0.0
        self._finished = self._stopped = False
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
        reduce_s = self._advantages()
        rollout = self._collector.rollout
        stats, waited = self._learner.update(rollout.flat, rollout.log_std)
        if self._obs_norm is not None:
            self._obs_norm.update(self._obs_moments)
        reduce_s += waited
        train_s = perf_counter() - start - reduce_s
        self._iteration += 1
        self._steps += self._steps_per_iteration
        self._agree((simulate_s, infer_s, train_s, reduce_s), stats)
        run, every = self.mgr.config.run, self.mgr.config.comm.checksum_every
        if every and self._iteration % every == 0:
            parameters = self._learner.parameters
            assert_identical(
                self.group, parameters.data.detach(), parameters.names, parameters.offsets,
                self._iteration,
            )  # fmt: skip
        if run.checkpoint_every and self._iteration % run.checkpoint_every == 0:
            self._checkpoint()

    def _set_learning_rate(self) -> None:
        settings = self.mgr.config.algorithm
        if settings.schedule == "linear":
            left = 1.0 - self._steps / self.mgr.config.run.total_steps
            self._learner.learning_rate = settings.learning_rate * max(left, 0.0)

    def _advantages(self) -> float:
        """Fill advantage and return columns in normalised units; seconds spent in the gather."""
        rollout, settings = self._collector.rollout, self.mgr.config.algorithm
        value = rollout["value"]
        advantage = gae(
            rollout.reward, value, rollout.done, rollout.last_value,
            settings.gamma, settings.lam, self._advantage,
        )  # fmt: skip
        returns = advantage + value
        buffer = self._moments.buffer
        batch_moments(advantage.view(-1, 1), buffer[0:3])
        batch_moments(returns.view(-1, 1), buffer[3:6])
        batch_moments(rollout.raw_observation.flatten(0, 1), buffer[6:])
        start = perf_counter()
        merged = merge_moments(self._moments.gather())
        waited = perf_counter() - start
        self._obs_moments.copy_(merged[6:])
        if self._value_norm is not None:
            self._value_norm.update(merged[3:6])
            rollout["value"].copy_(self._value_norm.normalize(value))
            returns = self._value_norm.normalize(returns)
        rollout["ret"].copy_(returns)
        if settings.normalize_advantage:
            mean, std = float(merged[1]), float((merged[2] / merged[0]).sqrt())
            advantage = (advantage - mean) / (std + 1e-8)
        rollout["advantage"].copy_(advantage)
        return waited

    def _agree(self, phases: tuple[float, ...], stats: dict[str, float]) -> None:
        """Share counts and times with all GMIs; decide together whether to stop; report."""
        finished = self._collector.episodes.drain()
        stop = float(self.mgr.stop_requested())
        mine = (
            stop,
            len(finished),
            sum(r for r, _ in finished),
            sum(n for _, n in finished),
            *phases,
        )
        self._sync.buffer.copy_(torch.tensor(mine, dtype=torch.float64))
        all_gmis: Tensor = self._sync.gather()
        stop, episodes, return_sum, length_sum = all_gmis[:, :4].sum(0).tolist()
        seconds = all_gmis[:, 4:].tolist()
        self._window.add(episodes, return_sum, length_sum)
        return_mean, length_mean = self._window.means()
        run = self.mgr.config.run
        reached = (
            run.target_return is not None
            and return_mean is not None
            and return_mean >= run.target_return
        )
        self._stopped = bool(stop)
        self._finished = self._stopped or reached or self._steps >= run.total_steps
        if self._log is None:
            return
        time_s = self._trained_s + perf_counter() - self._began
        metrics = {
            "iteration": self._iteration,
            "steps": self._steps,
            "time_s": time_s,
            "steps_per_s": self._steps_per_iteration / sum(phases),
            "return_mean": return_mean,
            "length_mean": length_mean,
            "episodes": int(episodes),
            **dict(zip(_PHASES, [sum(c) / len(c) for c in zip(*seconds, strict=True)], strict=True)),
            **stats,
        }
        if self._iteration % run.log_every == 0 or self._finished:
            self._log.write(metrics)
        self.mgr.report({"kind": "iteration", **metrics, "gmi_seconds": seconds})

    # Checkpoints and evaluation ------------------------------------------------------------

    def _checkpoint(self, final: bool = False) -> None:
        """Write a checkpoint together; a failed one is reported, and fatal only at the end."""
        context = self.mgr.context
        if context.folder is None:
            return
        folder = context.folder / "checkpoints"
        if final and checkpoint.folder_of(folder, self._iteration).exists():
            return
        failure = ""
        try:
            checkpoint.write_part(folder, self._iteration, f"gmi{self.GMI_id}", self._own_state())
            if self.group.rank == 0:
                checkpoint.write_part(folder, self._iteration, "shared", self._shared_state())
        except OSError as error:
            failure = f"{type(error).__name__}: {error}"
        failed = self.mgr.allreduce(float(bool(failure)), self.group, "sum")
        if self.group.rank == 0 and not failed:
            try:
                manifest = {
                    "steps": self._steps,
                    "gmis": [[g.gmi_id, g.num_env] for g in self.mgr.layout.gmis],
                    "environment": self.mgr.config.env.id,
                }
                checkpoint.commit(folder, self._iteration, manifest, _KEPT_CHECKPOINTS)
            except OSError as error:
                failure = f"{type(error).__name__}: {error}"
        failed = self.mgr.allreduce(float(bool(failure)), self.group, "sum")
        if not failed:
            return
        if self.group.rank == 0:
            checkpoint.discard(folder, self._iteration)
        if not failure:
            return
        message = (
            f"checkpoint at iteration {self._iteration} was not written: {failure}. "
            f"Older checkpoints in {folder} are whole; free some space."
        )
        if final:
            raise checkpoint.CheckpointError(message)
        self.mgr.report({"kind": "warning", "message": message})

    def _shared_state(self) -> dict[str, Any]:
        return {
            "parameters": self._learner.parameters.data.detach().clone(),
            "optimizer": self._learner.optimizer.state_dict(),
            "observation_normalizer": self._obs_norm and self._obs_norm.state_dict(),
            "value_normalizer": self._value_norm and self._value_norm.state_dict(),
            "window": self._window.state_dict(),
            "iteration": self._iteration,
            "steps": self._steps,
            "trained_s": self._trained_s + perf_counter() - self._began,
        }

    def _own_state(self) -> dict[str, Any]:
        return {
            "env": self._env.state_dict(),
            "observation": self._collector.observation,
            "episodes": self._collector.episodes.state_dict(),
            "generator": self._own.get_state(),
        }

    def _restore(self) -> None:
        context = self.mgr.context
        assert context.resume is not None
        found = checkpoint.find(context.resume)
        here = [[g.gmi_id, g.num_env] for g in self.mgr.layout.gmis]
        if found.manifest["gmis"] != here:
            raise checkpoint.CheckpointError(
                f"{found.folder} was written by GMIs with (id, num_env) {found.manifest['gmis']}; "
                f"this layout has {here}. Resume with the layout of the run's own config.yaml."
            )
        shared = found.load("shared")
        with torch.no_grad():
            self._learner.parameters.data.copy_(shared["parameters"])
        self._learner.optimizer.load_state_dict(shared["optimizer"])
        if self._obs_norm is not None:
            self._obs_norm.load_state_dict(shared["observation_normalizer"])
        if self._value_norm is not None:
            self._value_norm.load_state_dict(shared["value_normalizer"])
        self._window.load_state_dict(shared["window"])
        self._iteration, self._steps = shared["iteration"], shared["steps"]
        self._trained_s = shared["trained_s"]
        self._finished = self._steps >= self.mgr.config.run.total_steps
        own = found.load(f"gmi{self.GMI_id}")
        self._own.set_state(own["generator"])
        if own["env"] is None:  # this adapter cannot save its environments: new episodes begin
            message = f"{self.mgr.config.env.id} cannot be saved; its episodes begin anew"
            self.mgr.report({"kind": "warning", "message": message})
            return
        self._env.load_state_dict(own["env"])
        self._collector.observation = own["observation"]
        self._collector.episodes.load_state_dict(own["episodes"])

    def _evaluate(self) -> dict[str, Any]:
        """Final result: counters, and the mean return of whole episodes of the greedy policy."""
        result = {"iteration": self._iteration, "steps": self._steps, "stopped": self._stopped}
        episodes = self.mgr.config.run.eval_episodes
        if not episodes or self._stopped:
            return result
        mine = -(-episodes // self.group.size)
        env = self.make_env(mine, seed=2)
        try:
            returns = evaluate(env, self._policy, self._obs_norm).double()
        finally:
            env.close()
        sums = torch.stack([returns.sum(), returns.square().sum()])
        total, squares = self.mgr.allreduce(sums, self.group, "sum").tolist()
        count = mine * self.group.size
        mean = total / count
        spread = max(squares / count - mean * mean, 0.0) ** 0.5
        return result | {"eval_return": mean, "eval_std": spread, "eval_episodes": count}
