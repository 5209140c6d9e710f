"""Training in one place on what all evaluators have sampled: RLlib's local optimizer.

Samples are gathered as in Ray's paper: an evaluator that has answered is asked again at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.evaluators.counts import checked_count
from gmi_drl.roles.optimizers.learner import Learner, Shard
from gmi_drl.roles.samples.codec import complete
from gmi_drl.roles.samples.episodes import Seen

from .base import Learning
from .joined import JoinedSamples


class Local(Learning):
    """Evaluators sample; all epochs are trained here, and the weights go back."""

    def __init__(
        self,
        algorithm: type[Algorithm],
        evaluators: Sequence[Any],
        *,
        samples: int | None = None,
        drop_slowest: int = 0,
        **rest: Any,
    ) -> None:
        """`samples`: horizons in a batch (None: one of each evaluator).

        An evaluator that has answered is asked again at once, until the batch is full.
        `drop_slowest`: a batch is complete without the samples of so many, the last to answer.
        """
        super().__init__(algorithm, evaluators, **rest)
        self._drop = self._checked_drop(drop_slowest)
        count = self.fleet.size - self._drop if samples is None else samples
        self._width = checked_count("samples", count, 1)
        num_env, graph = self._num_env[0], self.graph
        self._joined = JoinedSamples(graph, num_env, self._width)
        steps = graph.pieces_each
        shards = [Shard.of(steps, num_env, self._spec.seed, rank) for rank in range(self._width)]
        generator = torch.Generator().manual_seed(self._spec.seed)
        self._learn_by(Learner(graph.algorithm, generator, self._joined.batch, shards=shards))

    def step(self) -> dict[str, Any]:
        self._round += 1
        weights, batch = self.fleet.put(self.graph.acting()), self._joined.batch
        places: dict[int, int] = {}  # by evaluator: where in the batch its sample is to lie
        episodes, num_taken, num_asked = Seen(0.0, 0.0, 0.0), 0, 0
        while num_taken < self._width:
            for number in self._idle():
                if num_asked < self._width + self._drop:
                    places[number] = num_asked
                    self._ask(number, "sample", weights, self.steps)
                    num_asked += 1
            answered = self._first()
            if answered is None:
                continue
            number, sample = answered
            # Whose samples are dropped is known at the end: with drops, samples lie as they came.
            self._joined.put(num_taken if self._drop else places[number], sample)
            episodes, num_taken = episodes.plus(sample.episodes), num_taken + 1
        complete(batch, self.graph.policy, self.graph.normalizers.observations)
        self._anneal()
        self._learner.update(batch)
        return self._learned(episodes, self._width * self._horizon_steps)
