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

from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.graphs import Pool
from gmi_drl.roles.policies.actor import CapturedActor, GreedyActor
from gmi_drl.roles.role.acting import ActingRole
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.state.policy import load_policy
from gmi_drl.roles.telemetry.clock import Clock, Leash
from gmi_drl.roles.telemetry.phases import phase

from .turns import Simulation, Turns

_REPORT_S: Final = 0.5


class Server(ActingRole):
    """The base of roles that serve: their share of the steps, and reports of it."""

    recoverable = says_set_up = True

    def _begin(self, phases: Sequence[str]) -> None:
        """Start the clock when all GMIs are set up; `phases` are what the time is spent with."""
        self.mgr.await_set_up()
        self._tally = self.mgr.tally
        self._seconds = dict.fromkeys(phases, 0.0)
        self._turns, self._horizon = 0, self.mgr.config.algorithm.horizon
        self._began = self._reported = perf_counter()

    def _turn(self) -> None:
        """A step of all environments begins; `horizon` of them are an iteration of a trace."""
        if self._turns % self._horizon == 0:
            self.mgr.begin_iteration()
        beat("serving")
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
        if not last and perf_counter() - self._reported < _REPORT_S:
            return
        seen = Seen(0.0, 0.0, 0.0)
        for simulation in simulations:
            if last:
                simulation.settle()
            seen += simulation.episodes.take()
        seconds = self._spent()
        self._reported = perf_counter()  # all that is reported has been done by now
        self.mgr.report(
            {
                "kind": "served",
                "gmi_id": self.GMI_id,
                "steps": self._steps,
                "began_s": self._began,  # all GMIs have the same clock
                "until_s": self._reported,
                "seconds": seconds,
                "episodes": int(seen.count),
                "return_sum": seen.return_sum,
                "length_sum": seen.length_sum,
            }
        )

    def _spent(self) -> dict[str, float]:
        """The seconds of each phase since the last call."""
        spent, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        return spent

    def _actor(self, env: VecEnv, pool: Pool | None = None) -> GreedyActor:
        """What acts: the policy of `run.policy`, or a new one; captured in `pool`, if any."""
        self.build(env)
        if (path := self.mgr.config.run.policy) is not None and (
            warning := load_policy(
                Path(path), self.policy.network, self.normalizers, self.description
            )
        ):
            self.mgr.warn(warning)
        if pool is not None:
            return CapturedActor(self.policy, self.normalizers.observations, pool)
        return GreedyActor(self.policy, self.normalizers.observations)


class Serving(Server):
    """TCG: simulator and agent in one GMI."""

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Serve this GMI's share of the steps, or until the launcher asks to stop."""
        self.check_no_params(params)
        env = self.make_env()
        self.mgr.close_later(env.close)
        pool, clock, leash = self.pool(env.device), Clock(env.device), Leash(env.device)
        simulation = Simulation(env, pool)
        turns = Turns(simulation, self._actor(env), pool)
        self._clock = clock
        self._begin(("simulate", "infer"))
        while self._goes_on():
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

    def _spent(self) -> dict[str, float]:
        return super()._spent() | self._clock.read()
