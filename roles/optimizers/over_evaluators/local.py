"""Training in one place on what all evaluators have sampled: RLlib's local optimizer.

Samples are gathered as Ray's paper scatters and gathers: who has answered is asked again at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.evaluators.graph import tensor_of
from gmi_drl.roles.evaluators.standalone import Sample, codec_of
from gmi_drl.roles.optimizers.learner import Learner, Shard
from gmi_drl.roles.samples.codec import complete
from gmi_drl.roles.samples.episodes import Seen

from .base import Learning, checked_drop


class Local(Learning):
    """Evaluators sample; all epochs are trained here, and the weights go back."""

    name = "local"

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
        `drop_slowest`: a batch is what all but so many have answered first.
        """
        super().__init__(algorithm, evaluators, **rest)
        self._drop = checked_drop(drop_slowest, self.fleet.size)
        self._width = samples or self.fleet.size - self._drop
        num_env, graph = self._num_env[0], self.graph
        self._batch, self._codec = graph.batch(num_env * self._width), codec_of(graph, num_env)
        each = graph.pieces_each
        shards = [Shard.of(each, num_env, self._spec.seed, i) for i in range(self._width)]
        generator = torch.Generator().manual_seed(self._spec.seed)
        self._learn_by(Learner(graph.algorithm, generator, self._batch, shards=shards))

    def step(self) -> dict[str, Any]:
        self._round += 1
        weights, num_env = self.fleet.put(self.graph.acting()), self._num_env[0]
        places: dict[int, int] = {}  # by evaluator: where in the batch what it was asked for lies
        seen, taken, asked = Seen(0.0, 0.0, 0.0), 0, 0
        while taken < self._width:
            for number in self._idle():
                if asked < self._width + self._drop:
                    places[number] = asked
                    self._ask(number, "sample", weights, self.steps)
                    asked += 1
            answered = self._first()
            if answered is None:
                continue
            number, sample = answered
            # Who is dropped is known when the others have come: then they lie as they came.
            self._take(sample, (taken if self._drop else places[number]) * num_env)
            seen, taken = seen.plus(sample.episodes), taken + 1
        complete(self._batch, self.graph.policy, self.graph.normalizers.observations)
        self._anneal()
        self._learner.update(self._batch)
        return self._learned(seen, self._width * self._horizon_steps)

    def _take(self, sample: Sample, first: int) -> None:
        self._codec.unpack(tensor_of(sample.memory), self._batch, first)
