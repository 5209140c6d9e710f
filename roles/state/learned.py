"""What all GMIs of a run hold alike: the policy and everything that is learned beside it."""

from __future__ import annotations

from typing import Any

from gmi_drl.roles.algorithms.ppo import Learner
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.telemetry.progress import Progress


class Learned:
    """Parameters, optimizer, normalisers and episode statistics, as one state."""

    def __init__(
        self,
        learner: Learner,
        observations: RunningNormalizer | None,
        values: RunningNormalizer | None,
        progress: Progress,
    ) -> None:
        self._learner, self._progress = learner, progress
        self._observations, self._values = observations, values

    def state_dict(self) -> dict[str, Any]:
        """The state, partly the tensors themselves: copy or write it before training goes on."""
        return {
            **self._learner.state_dict(),
            "observation_normalizer": self._observations and self._observations.state_dict(),
            "value_normalizer": self._values and self._values.state_dict(),
            "episodes": self._progress.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._learner.load_state_dict(state)
        if self._observations is not None:
            self._observations.load_state_dict(state["observation_normalizer"])
        if self._values is not None:
            self._values.load_state_dict(state["value_normalizer"])
        self._progress.load_state_dict(state["episodes"])
