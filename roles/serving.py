"""Mode serving: simulate and infer, learn nothing (GMI-DRL, section 5.1; its figure 7a).

`Serving` is simulator and agent in one GMI (TCG); `serving_pair` has them in two (TDG).

Each GMI with environments takes its share of `run.total_steps`. What it has done is in the tally,
so that a GMI that was killed goes on where it was; its episodes begin anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from .acting import ActingRole, Actor, load_policy
from .envs.protocol import VecEnv
from .episodes import EpisodeStats
from .phases import phase
from .rollout import env_action

_REPORT_S: Final = 0.5


class Simulation:
    """Environments that are acted in, what they show, and the episodes that ended."""

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.observation = env.reset()  # [N, D], the environment's own
        self.episodes = EpisodeStats(env.num_env)
        self._to_env = env_action(env.action_space, env.device)

    def step(self, action: Tensor) -> None:
        """One step of all environments by the policy's rows [N, A]."""
        step = self.env.step(self._to_env(action))
        self.observation = step.observation
        self.episodes.add(step.reward, torch.logical_or(step.terminated, step.truncated))


class Server(ActingRole):
    """What serving roles share: their share of the steps, and reports of it."""

    recoverable = True

    def _begin(self, phases: Sequence[str]) -> None:
        """Start the clock; `phases` are what the time is spent with."""
        self._tally = self.mgr.tally
        self._seconds = dict.fromkeys(phases, 0.0)
        self._turns, self._horizon = 0, self.mgr.config.algorithm.horizon
        self._began = self._reported = perf_counter()

    def _turn(self) -> None:
        """A step of all environments begins; `horizon` of them are an iteration of a trace."""
        if self._turns % self._horizon == 0:
            self.mgr.begin_iteration()
        self._turns += 1

    @property
    def _steps(self) -> int:
        """Environment steps that this GMI has simulated or acted for, in all its lives."""
        return self._tally[self.GMI_id, "steps"]

    def _count(self, steps: int) -> None:
        self._tally[self.GMI_id, "steps"] = self._steps + steps

    def _goes_on(self) -> bool:
        """Whether steps of this GMI's share are left, and nobody has asked it to stop."""
        everywhere = sum(gmi.num_env for gmi in self.mgr.layout.gmis)
        share = -(-self.mgr.config.run.total_steps // everywhere) * self.mgr.context.spec.num_env
        return self._steps < share and not self.mgr.stop_requested()

    def _report(self, simulations: Sequence[Simulation] = (), last: bool = False) -> None:
        """Tell the launcher, every now and then, what was done since the last time."""
        now = perf_counter()
        if not last and now - self._reported < _REPORT_S:
            return
        self._reported = now
        episodes = [episode for one in simulations for episode in one.episodes.drain()]
        self.mgr.report(
            {
                "kind": "served",
                "gmi_id": self.GMI_id,
                "steps": self._steps,
                "began_s": self._began,  # all GMIs have the same clock
                "until_s": now,
                "seconds": dict(self._seconds),
                "episodes": len(episodes),
                "return_sum": sum(r for r, _ in episodes),
                "length_sum": sum(n for _, n in episodes),
            }
        )
        self._seconds = dict.fromkeys(self._seconds, 0.0)

    def _actor(self, env: VecEnv) -> Actor:
        """What acts: the policy of `run.policy`, or a new one."""
        policy, normalizers = self._build_policy(env)
        if (path := self.mgr.config.run.policy) is not None:
            load_policy(Path(path), policy, normalizers)
        return Actor(policy, normalizers.observations)


class Serving(Server):
    """TCG: simulator and agent in one GMI."""

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Serve this GMI's share of the steps, or until the launcher asks to stop."""
        self._check_no_params(params)
        env = self.make_env()
        try:
            return self._serve(env)
        finally:
            env.close()

    def _serve(self, env: VecEnv) -> dict[str, Any]:
        actor, simulation = self._actor(env), Simulation(env)
        self._begin(("simulate", "infer"))
        while self._goes_on():
            self._turn()
            start = perf_counter()
            with phase("infer"):
                action = actor.act(simulation.observation)
            inferred = perf_counter()
            with phase("simulate"):
                simulation.step(action)
            self._seconds["infer"] += inferred - start
            self._seconds["simulate"] += perf_counter() - inferred
            self._count(env.num_env)
            self._report([simulation])
        self._report([simulation], last=True)
        return {"steps": self._steps}
