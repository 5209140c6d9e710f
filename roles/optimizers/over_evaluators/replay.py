"""Training on kept experience: evaluators sample, and their samples are kept and trained on here.

DQN, DDPG, TD3, SAC and algorithms like these run under both. The updates that are due for a sample
are made before the next one is taken, which holds evaluators to the ratio.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from gmi_drl.comm import solo_group
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.evaluators.graph import tensor_of
from gmi_drl.roles.evaluators.standalone import Sample
from gmi_drl.roles.optimizers.in_flight import InFlight
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.optimizers.replay import on_replay
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.seeds import DRAWS, GOALS, seed_of

from .base import Learning
from .joined import JoinedSamples


class Replay(Learning):
    """All evaluators sample, and the updates that are due for their samples are made."""

    trains_on = "kept experience"

    def __init__(self, algorithm: type[Algorithm], evaluators: Sequence[Any], **rest: Any) -> None:
        super().__init__(algorithm, evaluators, **rest)
        self._joined = JoinedSamples(self.graph, self._num_env[0], self._width)
        self._batch = self._joined.batch
        generator = torch.Generator().manual_seed(seed_of(self._spec.seed, 0, DRAWS))
        learner = Learner(self.graph.algorithm, generator)
        self._goals_env: VecEnv | None = None
        self._replay = on_replay(
            learner, self._batch, self._spec.stacking, self._make_goals_env,
            in_turn=self._width == self.fleet.size,
        )  # fmt: skip
        self._learn_by(learner)

    @property
    def _width(self) -> int:
        """The evaluators whose samples lie side by side in a batch."""
        return self.fleet.size

    def step(self) -> dict[str, Any]:
        weights, everybody = self.fleet.put(self.graph.acting()), range(self.fleet.size)
        return self._learn_from(self._ask_all(everybody, "sample", weights, self.steps).values())

    def _learn_from(self, samples: Collection[Sample]) -> dict[str, Any]:
        """Keeps what lies side by side, and takes the updates that are due."""
        episodes = Seen(0.0, 0.0, 0.0)
        for place, sample in enumerate(samples):
            self._joined.put(place, sample)
            episodes = episodes.plus(sample.episodes)
        self._anneal()
        if self._total_steps:
            self._replay.anneal(self.steps / self._total_steps)
        self._replay.update(self._batch)
        return self._learned(episodes, len(samples) * self._horizon_steps) | self._replay.metrics()

    def _make_goals_env(self) -> VecEnv:
        self._goals_env = self._make_env(seed=seed_of(self._spec.seed, 0, GOALS))
        return self._goals_env

    def state_dict(self) -> dict[str, Any]:
        """Returns what goes on, with what is kept (`replay_save`); partly the tensors themselves.

        It is copied or written before training goes on.
        """
        replay_state = self._replay.state_dict() | self._replay.own_state()
        draws = self._learner.generator.get_state()
        return super().state_dict() | replay_state | {"draws": draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._learner.generator.set_state(state["draws"])
        self._replay.load_state_dict(state)
        self._replay.load_own_state(state)
        self._replay.connect(solo_group())

    def close(self) -> None:
        if self._goals_env is not None:
            self._goals_env.close()
        super().close()


class Apex(Replay):
    """Each evaluator has a sample in flight, and the first that comes is learned from.

    As in Ape-X (Horgan et al., 2018) samples come with the priorities that evaluators give them,
    where the replay draws by priorities. The `lag` of a sample is the number of updates that were
    made since its policy.
    """

    def __init__(self, algorithm: type[Algorithm], evaluators: Sequence[Any], **rest: Any) -> None:
        super().__init__(algorithm, evaluators, **rest)
        self._in_flight: InFlight[Sample] = InFlight(self._idle, self._ask_to_sample, self._first)

    @property
    def _width(self) -> int:
        return 1

    def step(self) -> dict[str, Any]:
        _, sample, lag = self._in_flight.next(self.updates)
        if sample.priorities is not None:
            self._batch.columns["priority"] = tensor_of(sample.priorities)
        return self._learn_from([sample]) | {"lag": lag}

    def _ask_to_sample(self, number: int) -> None:
        self._ask(number, "sample", self.graph.acting(), self.steps, True)
