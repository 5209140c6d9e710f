"""Serves a policy: simulates and infers, learns nothing (GMI-DRL, section 5.1; its figure 7a).

`Serving` is simulator and agent in one GMI (TCG); `serving_pair` has them in two (TDG).

Each GMI with environments takes its share of `run.total_steps`. What it has done is in the tally,
so that a GMI that was killed goes on where it was; its episodes begin anew.

On the CPU, episodes that ended are looked for after every step. On a GPU every turn launches the
same work with masks and nothing waits for the device; with a pool, all of a turn but the step of
the environments is one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.graphs import Graph, Pool, capture_steps, static_on
from gmi_drl.roles.policies.description import load_policy
from gmi_drl.roles.policies.policy import CapturedActor, GreedyActor
from gmi_drl.roles.role.acting import ActingRole
from gmi_drl.roles.samples.batch import env_action
from gmi_drl.roles.samples.collector import Steady
from gmi_drl.roles.samples.episodes import EpisodeStats, Seen
from gmi_drl.roles.telemetry.clock import Clock, Leash
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.runtime.process.progress import beat

_REPORT_S: Final = 0.5
_CPU: Final = torch.device("cpu")


class Simulation:
    """Environments that are acted in, what they show, and the episodes that ended.

    `static`: the way of a GPU, wherever the environments are (None: on all devices but the CPU).
    """

    def __init__(self, env: VecEnv, pool: Pool | None = None, static: bool | None = None) -> None:
        self.env = env
        self.static = static_on(env.device, static)
        self.observation = env.reset()  # [N, D], the environment's own
        # [N], where that is the first of an episode; on the static way once the step is counted.
        self.began = torch.ones(env.num_env, dtype=torch.bool, device=env.device)
        self.episodes = EpisodeStats(env.num_env, env.device)
        self.to_env = env_action(env.action_space, env.device)
        self.steady = Steady()
        self.uncounted = False  # the last step
        if pool is not None:
            capture_steps(env, pool)

    def step(self, action: torch.Tensor) -> None:
        """Takes one step of all environments, by actions of theirs (`to_env`).

        On the static way the episodes that ended with it are counted by `settle`, or else `count`.
        """
        step = self.env.step(action)
        if self.static:
            self.steady.take(step)
            step, self.uncounted = self.steady.step, True
        else:
            torch.logical_or(step.terminated, step.truncated, out=self.began)
            self.episodes.add(step.reward, self.began)
        self.observation = step.observation

    def settle(self) -> None:
        """Counts the last step, if that was not done."""
        if self.uncounted:
            self.count()
            self.uncounted = False

    @torch.no_grad()
    def count(self) -> None:
        """Counts the last step, by launches only."""
        step = self.steady.step
        torch.logical_or(step.terminated, step.truncated, out=self.began)
        self.episodes.add_masked(step.reward, self.began)


class Turns:
    """The agent of a `Simulation`; with a pool captured, from the third turn on."""

    def __init__(
        self, simulation: Simulation, actor: GreedyActor, pool: Pool | None = None
    ) -> None:
        self._simulation, self._actor, self._pool = simulation, actor, pool
        # What the environments are to do next; on the static way in the same tensor each time.
        self.action = simulation.to_env(self._actions()).clone()
        self._graph: Graph | None = None
        self._captured_at = 0

    def infer(self) -> None:
        """Chooses `action` for what the environments show; counts the step that led there."""
        simulation, steady = self._simulation, self._simulation.steady
        if not simulation.static:
            self.action = simulation.to_env(self._actions())
            return
        if self._pool is None or steady.taken < 2:  # the second step tells whether they stay
            simulation.settle()
            self._choose()
            return
        if self._graph is None or steady.moves != self._captured_at:
            self.close()
            self._captured_at = steady.moves
            work = self._count_and_choose
            keep = [*simulation.episodes.tensors, *self._actor.changed]
            device, name = simulation.env.device, "the work between two steps"
            self._graph = Graph(work, device, keep=keep, pool=self._pool, name=name)
        self._graph()
        simulation.uncounted = False

    def close(self) -> None:
        """Lets captured work and its memory go."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def _count_and_choose(self) -> None:
        self._simulation.count()
        self._choose()

    @torch.no_grad()
    def _choose(self) -> None:
        self.action.copy_(self._simulation.to_env(self._actions()))

    def _actions(self) -> torch.Tensor:
        return self._actor.act(self._simulation.observation, self._simulation.began)


class Server(ActingRole):
    """The base of roles that serve: their share of the steps, and reports of it."""

    recoverable = says_set_up = True

    def _begin(self, phases: Sequence[str], device: torch.device = _CPU) -> None:
        """Starts when all GMIs are set up; `phases` are what the time of `device` is spent with."""
        self.mgr.await_set_up()
        self._tally, self._phases, self._clock = self.mgr.tally, phases, Clock(device)
        self._turns, self._horizon = 0, self.mgr.config.algorithm.horizon
        self._began = self._reported = perf_counter()

    def _turn(self) -> None:
        """Begins a step of all environments; `horizon` of them are one iteration of a trace."""
        if self._turns % self._horizon == 0:
            self.mgr.begin_iteration()
        beat("serving")
        self._turns += 1

    @property
    def _steps(self) -> int:
        """Returns the steps that this GMI has simulated or acted for, in all its lives."""
        return self._tally[self.GMI_id, "steps"]

    def _count(self, steps: int) -> None:
        self._tally[self.GMI_id, "steps"] += steps

    def _has_steps_left(self) -> bool:
        """Tells whether steps of its share are left, and nobody has asked this GMI to stop."""
        total_env = sum(gmi.num_env for gmi in self.mgr.layout.gmis)
        share = -(-self.mgr.config.run.total_steps // total_env) * self.mgr.context.spec.num_env
        return self._steps < share and not self.mgr.stop_requested()

    def _report(self, simulations: Sequence[Simulation] = (), last: bool = False) -> None:
        """Tells the launcher, every now and then, what was done since the last time."""
        if not last and perf_counter() - self._reported < _REPORT_S:
            return
        totals = Seen(0.0, 0.0, 0.0)
        for simulation in simulations:
            if last:
                simulation.settle()
            totals = totals.plus(simulation.episodes.take())
        seconds = dict.fromkeys(self._phases, 0.0) | self._clock.read()
        self._reported = perf_counter()  # all that is reported has been done by now
        self.mgr.report(
            {
                "kind": "served",
                "gmi_id": self.GMI_id,
                "steps": self._steps,
                "began_s": self._began,  # all GMIs have the same clock
                "until_s": self._reported,
                "seconds": seconds,
                "episodes": int(totals.episodes),
                "return_sum": totals.return_sum,
                "length_sum": totals.length_sum,
            }
        )

    def _load(self, env: VecEnv) -> None:
        """Makes the policy that acts in environments like `env`: `run.policy`, or a new one."""
        self.build(env)
        network, normalizers = self.policy.network, self.normalizers
        if (path := self.mgr.config.run.policy) is not None:
            load_policy(Path(path), network, normalizers, self.description)

    def _actor(self, pool: Pool | None = None) -> GreedyActor:
        """Returns what acts by the policy in some environments, captured if there is a `pool`."""
        if pool is not None:
            return CapturedActor(self.policy, self.normalizers.observations, pool)
        return GreedyActor(self.policy, self.normalizers.observations)


class Serving(Server):
    """TCG: simulator and agent in one GMI."""

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Serves this GMI's share of the steps, or until the launcher asks to stop."""
        self.check_no_params(params)
        env = self.make_env()
        self.mgr.close_later(env.close)
        pool, leash = self.pool(env.device), Leash(env.device)
        simulation = Simulation(env, pool)
        self._load(env)
        turns = Turns(simulation, self._actor(), pool)
        self._begin(("simulate", "infer"), env.device)
        clock = self._clock
        while self._has_steps_left():
            self._turn()
            clock.begin("infer")
            with phase("infer"):
                turns.infer()
            clock.begin("simulate")
            with phase("simulate"):
                simulation.step(turns.action)
            clock.stop()
            leash.end_round()
            self._count(env.num_env)
            self._report([simulation])
        self._report([simulation], last=True)
        turns.close()
        return {"steps": self._steps}
