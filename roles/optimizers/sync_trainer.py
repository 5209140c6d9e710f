"""The trainer of TDG_EX: learns from what the agents of its device collect, in turn with them.

An iteration: the agents collect a horizon with the present policy (crew.py says how), the trainer
puts their environments side by side and does what a co-located one does, together with the trainers
of the other devices. With the same environments and random numbers the policy is the same.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

import numpy as np
from torch import Tensor

from gmi_drl.roles.evaluators.rollout_workers import Crew
from gmi_drl.roles.policies.policy import observation_width
from gmi_drl.roles.policies.published import PublishedPolicy
from gmi_drl.roles.role.heartbeat_deadline import show, signs_in
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.samples.rollout import Rollout
from gmi_drl.roles.samples.rollout_codec import Handover, complete
from gmi_drl.roles.telemetry.phases import phase

from .sync_training import Collected, SyncTraining

_WAITS: Final = 2  # what a trainer tells the others while its agents work; else 1, or 0: they left


class SyncTrainer(SyncTraining):
    """PPO for the agents of template tdg_ex. Override `make_policy` or `loss` to change it."""

    def _setup(self) -> None:
        context, horizon = self.mgr.context, self.mgr.config.algorithm.horizon
        with self.mgr.closed_after(self.make_env(1, seed=4)) as env:  # for its spaces
            self._policy, self._normalizers = self._build_policy(env)
            obs_dim = observation_width(env.observation_space)
            of_bytes = env.observation_space.dtype == np.uint8
        agents = sorted(context.wires.out_of(self.GMI_id))
        sizes = {agent: self.mgr.layout.gmi(agent).num_env for agent in agents}
        self._first: dict[int, int] = {}  # each agent's first environment in the rollout
        for agent in sizes:
            self._first[agent] = sum(sizes[before] for before in self._first)
        self._handovers = {
            agent: Handover(horizon, num_env, obs_dim, self._policy, of_bytes)
            for agent, num_env in sizes.items()
        }
        total = sum(sizes.values())
        self._prepare(Rollout(horizon, total, obs_dim, self._policy, context.device))
        self._published = PublishedPolicy(self._learner.parameters, self._normalizers)
        self._crew = Crew(
            context.wires.out_of(self.GMI_id),
            context.wires.into(self.GMI_id),
            self._published.numel,
            self._handovers,
            self.mgr.timeout,
            signs_in(self.mgr.tally),
            lambda: self._meet(_WAITS),
            context.device,
        )

    def _collect(self) -> Collected | None:
        start = perf_counter()
        self._stats: dict[int, list[float]] = {}
        with phase("wait"):
            there = self._crew.collect(self._iteration, self._published.write, self._take)
            if not self._all(there):
                return None
            complete(self._rollout, self._policy, self._normalizers.observations)
        seen = Seen.by({agent: stats[:3] for agent, stats in self._stats.items()})
        agents = {agent: stats[3:] for agent, stats in self._stats.items()}
        waited_s = perf_counter() - start
        return Collected(lambda: ((waited_s,), seen), agents)

    def _all(self, there: bool) -> bool:
        """Whether the agents of all trainers are there.

        Trainers whose agents are not done say so again and again, and the others wait as long as
        they do: who is late is theirs to find.
        """
        while _WAITS in (said := self._meet(there)):
            pass
        return all(said)

    def _meet(self, state: int) -> list[int]:
        said = self.group.exchange(state)
        show(self.mgr.tally, self.GMI_id)
        return said

    def _take(self, agent: int, memory: Tensor) -> None:
        first = self._first[agent]
        self._stats[agent] = self._handovers[agent].unpack(memory, self._rollout, first)

    def _save(self, final: bool = False, missing: str = "") -> None:
        if self._saver is None or self._saved == self._iteration:
            return
        told = self._saver.begin(self._iteration) or self._crew.save(self._iteration)
        if not self._all(told is not None):
            # The last checkpoint was whole before any agent was told to leave: what those that
            # have not heard of it have written goes.
            self._saver.mend()
            return
        super()._save(final, missing or told or "")

    def _after_training(self) -> None:
        self._crew.dismiss()  # all trainers have the last checkpoint behind them
        self.group.barrier()  # one that dies before it gets here is waited for: it has agents too

    def _close(self) -> None:
        """The links end with the process. One that is killed before it has answered is
        replaced by one that opens them again."""
        self._close_captured()
