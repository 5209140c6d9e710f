"""The holistic role (TCG_EX): simulator, agent and trainer of PPO in one GMI."""

from __future__ import annotations

from typing import Any

from .optimizers.sync_training import Collected, SyncTraining
from .telemetry.phases import phase


class Holistic(SyncTraining):
    """PPO on co-located GMIs. Override `make_env`, `make_policy` or `loss` to change it."""

    def _setup(self) -> None:
        env = self.make_env()
        self.mgr.close_later(env.close)
        self._policy, self._normalizers = self._build_policy(env)
        self._collector = self._collector_of(env, self._policy, self._normalizers)
        self._prepare(self._collector.rollout)

    def _collect(self) -> Collected:
        with phase("infer"):
            self._collector.collect(self._iteration)
        return Collected(self._collector.read)

    # What is this GMI's own ----------------------------------------------------------------

    def _own_state(self) -> dict[str, Any]:
        return super()._own_state() | self._collector.state_dict()

    def _load_own(self, state: dict[str, Any]) -> None:
        super()._load_own(state)
        if not self._collector.load_state_dict(state):
            self._warn(f"{self.mgr.config.env.id} cannot be saved; its episodes begin anew")

    def _close(self) -> None:
        self._collector.close()
        self._close_captured()
