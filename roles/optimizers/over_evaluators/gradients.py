"""Optimizers whose evaluators differentiate: all together, or each in its own time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.errors import RoleError, SampleLost
from gmi_drl.roles.evaluators.graph import tensor_of
from gmi_drl.roles.evaluators.standalone import Gradient
from gmi_drl.roles.optimizers.in_flight import InFlight
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.samples.episodes import Seen

from .base import Learning

_MOST_LOST_ROUNDS: Final = 5  # in a row, before it is taken that the next ones would be lost too


class AllReduce(Learning):
    """Every evaluator differentiates its own sample; the mean of their gradients is applied."""

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
        self._drop = self._checked_drop(drop_slowest)
        self._learn_by(Learner(self.graph.algorithm, torch.Generator()))

    def step(self) -> dict[str, Any]:
        for _ in range(_MOST_LOST_ROUNDS):
            try:
                return self._sampled_and_trained()
            except SampleLost as error:  # its evaluator has died since; the round is begun anew
                # Those who have not answered are counted when they do.
                late = [number for number in self.fleet.busy if self._asked[number] == self._round]
                self.dropped += self.fleet.size - self._drop - len(late)
                number = error.number
        raise RoleError(
            f"{_MOST_LOST_ROUNDS} rounds in a row were lost as an evaluator was killed in each, "
            f"the last time evaluator {number}. Mend what kills it."
            f"{self.fleet.last_death(number)}"
        )

    def _sampled_and_trained(self) -> dict[str, Any]:
        settings, algorithm, fleet = self._settings, self.graph.algorithm, self.fleet
        weights, everybody = fleet.put(self.graph.weights()), range(fleet.size)
        moments = self._ask_all(everybody, "measure", weights, self.steps, drop=self._drop)
        numbers = list(moments)
        everyone = torch.stack([tensor_of(moment) for moment in moments.values()])
        algorithm.learn_batch_moments(everyone[:, : algorithm.num_batch_moments])
        self._ask_all(numbers, "minibatches", everyone.numpy())
        self._anneal()
        gradients: list[Gradient] = []
        for _ in range(settings.epochs * settings.minibatches):
            weights = fleet.put(self.graph.weights())
            gradients = list(self._ask_all(numbers, "minibatch", weights).values())
            vector = _mean([gradient.vector for gradient in gradients])
            self._learner.apply(vector, _mean([gradient.stats for gradient in gradients]))
        self._learner.learn_observations(everyone)
        episodes = Seen(0.0, 0.0, 0.0)
        for gradient in gradients:
            episodes = episodes.plus(gradient.episodes)
        return self._learned(episodes, len(numbers) * self._horizon_steps)


class AsyncGradients(Learning):
    """Each evaluator has a gradient in flight, and the first that comes is applied.

    A3C, where the algorithm is A2C (Mnih et al., 2016). The `lag` of a gradient is the number of
    steps that the others' gradients took since its parameters were sent.
    """

    single_step = True

    def __init__(self, algorithm: type[Algorithm], evaluators: Sequence[Any], **rest: Any) -> None:
        super().__init__(algorithm, evaluators, **rest)
        self._in_flight = InFlight(self._idle, self._ask_for_gradient, self._first)
        self._learn_by(Learner(self.graph.algorithm, torch.Generator()))

    def step(self) -> dict[str, Any]:
        _, gradient, lag = self._in_flight.next(self.updates)
        self._anneal()
        vector, stats, moments = map(tensor_of, (gradient.vector, gradient.stats, gradient.moments))
        self._learner.apply_with(vector, stats, moments)
        return self._learned(gradient.episodes, self._horizon_steps) | {"lag": lag}

    def _ask_for_gradient(self, number: int) -> None:
        self._ask(number, "gradient", self.graph.weights(), self.steps)


def _mean(arrays: Sequence[np.ndarray[Any, Any]]) -> Tensor:
    """Returns the mean, added up in the order of `arrays`: the same whichever came first."""
    total = tensor_of(arrays[0])
    for array in arrays[1:]:
        total += tensor_of(array)
    return total / len(arrays)
