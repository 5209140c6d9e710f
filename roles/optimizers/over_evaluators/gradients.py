"""Optimizers whose evaluators differentiate: all together, or each in its own time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.errors import SampleLost
from gmi_drl.roles.evaluators.graph import tensor_of
from gmi_drl.roles.evaluators.standalone import Gradient, learn_observations
from gmi_drl.roles.optimizers.descent import Descent
from gmi_drl.roles.samples.episodes import Seen

from .base import EvaluatorOptimizer, checked_drop


class Descending(EvaluatorOptimizer):
    """Optimizers that are brought gradients, and take the steps here."""

    def __init__(self, algorithm: type[Algorithm], evaluators: Sequence[Any], **rest: Any) -> None:
        super().__init__(algorithm, evaluators, **rest)
        self._descent = Descent(self.graph.parameters, self._settings)

    def _descend(self, gradients: Sequence[Gradient]) -> dict[str, float | None]:
        """Takes one step down the mean of gradients; what they report, in the mean."""
        stats = self.graph.algorithm.stats
        vector = _mean([one.vector for one in gradients])
        means = _mean([one.stats for one in gradients])
        kl = means[stats.index("kl")] if "kl" in stats else torch.zeros(())
        self._anneal(self._descent)
        with torch.no_grad():
            self._descent.step(vector, kl)
        self.updates += 1
        self.graph.algorithm.after_step(self.updates)
        told: dict[str, float | None] = dict(zip(stats, means.tolist(), strict=True))
        return told | {"learning_rate": self._descent.learning_rate}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"descent": self._descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._descent.load_state_dict(state["descent"])


class AllReduce(Descending):
    """Every evaluator differentiates its own sample; the mean of their gradients is applied."""

    name = "all_reduce"

    def __init__(
        self,
        algorithm: type[Algorithm],
        evaluators: Sequence[Any],
        *,
        drop_slowest: int = 0,
        **rest: Any,
    ) -> None:
        """`drop_slowest`: a round goes on with all but so many, those who sampled first."""
        super().__init__(algorithm, evaluators, **rest)
        self._drop = checked_drop(drop_slowest, self.fleet.size)

    def step(self) -> dict[str, Any]:
        while True:
            try:
                return self._sampled_and_trained()
            except SampleLost:  # its evaluator has died since; the round is begun anew
                self.dropped += self.fleet.size - self._drop

    def _sampled_and_trained(self) -> dict[str, Any]:
        self._round += 1
        settings, algorithm = self._settings, self.graph.algorithm
        weights = self.fleet.put(self.graph.weights())
        measured: dict[int, Tensor] = {}
        while len(measured) < self.fleet.size - self._drop:
            for number in self._idle():
                if number not in measured:
                    self._ask(number, "measure", weights, self.steps)
            if (answered := self._first()) is not None:
                measured[answered[0]] = tensor_of(answered[1])
        there = sorted(measured)
        everyone = torch.stack([measured[number] for number in there])
        algorithm.learn_batch_moments(everyone[:, : algorithm.num_batch_moments])
        self._round += 1  # who has not sampled yet is late
        self._ask_all(there, "minibatches", everyone.numpy())
        told: list[dict[str, float | None]] = []
        gradients: list[Gradient] = []
        for _ in range(settings.epochs * settings.minibatches):
            gradients = self._ask_all(there, "minibatch", self.fleet.put(self.graph.weights()))
            told.append(self._descend(gradients))
        learn_observations(self.graph, everyone)
        seen = Seen(0.0, 0.0, 0.0)
        for one in gradients:
            seen = seen.plus(one.episodes)
        means: dict[str, float | None] = {
            name: float(np.mean([one[name] for one in told])) for name in algorithm.stats
        }
        means["learning_rate"] = told[-1]["learning_rate"]
        return self._result(seen, len(there), means)

    def _ask_all(self, numbers: Sequence[int], what: str, *arguments: Any) -> list[Any]:
        """Asks these for the same; their answers in that order."""
        for number in numbers:
            self._ask(number, what, *arguments)
        answers: dict[int, Any] = {}
        while len(answers) < len(numbers):
            if (answered := self._first()) is not None:
                answers[answered[0]] = answered[1]
        return [answers[number] for number in numbers]


class AsyncGradients(Descending):
    """Each evaluator has a gradient under way; who brings one first is applied, and goes on.

    A3C, where the algorithm is A2C (Mnih et al., 2016): a gradient is of parameters as old as the
    steps that the others took meanwhile (`lag`).
    """

    name = "async_gradients"
    single_step = True

    def __init__(self, algorithm: type[Algorithm], evaluators: Sequence[Any], **rest: Any) -> None:
        super().__init__(algorithm, evaluators, **rest)
        self._began: dict[int, int] = {}  # by evaluator: the updates that its weights have had

    def step(self) -> dict[str, Any]:
        answered = None
        while answered is None:
            for number in self._idle():
                self._began[number] = self.updates
                self._ask(number, "gradient", self.graph.weights(), self.steps)
            answered = self._first()
        number, gradient = answered
        lag = self.updates - self._began[number]
        moments, algorithm = (
            tensor_of(gradient.moments)[None],
            self.graph.algorithm,
        )
        algorithm.learn_batch_moments(moments[:, : algorithm.num_batch_moments])
        stats = self._descend([gradient])
        learn_observations(self.graph, moments)
        return self._result(gradient.episodes, 1, stats) | {"lag": lag}


def _mean(arrays: Sequence[np.ndarray[Any, Any]]) -> Tensor:
    """Returns the mean, added up in this order: the same whoever was first."""
    total = tensor_of(arrays[0])
    for one in arrays[1:]:
        total += tensor_of(one)
    return total / len(arrays)
