"""Asynchronous training on samples: evaluators sample all the time, and training is done here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gmi_drl.placement import ActorCriticConfig, Fault
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.evaluators.counts import checked_count
from gmi_drl.roles.evaluators.standalone import Sample
from gmi_drl.roles.optimizers.in_flight import InFlight
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.seeds import DRAWS, seed_of

from .base import Learning
from .joined import JoinedSamples


class AsyncSamples(Learning):
    """Each evaluator has a sample in flight, and a batch is the samples that came first.

    An evaluator that has answered is asked again with the newest weights. IMPALA (Espeholt et al.,
    2018) and APPO correct for a sample's `lag`: the batches that were trained on since its policy.
    Each sample is trained on once.
    """

    trains_on = "sent experience"

    def __init__(
        self,
        algorithm: type[Algorithm],
        evaluators: Sequence[Any],
        *,
        samples: int = 1,
        max_policy_lag: int | None = None,
        **rest: Any,
    ) -> None:
        """`samples`: horizons in a batch, whose evaluators are asked again while it fills up.

        `max_policy_lag`: a sample whose policy is older is not trained on, and counted in
        `dropped`; None: all are.
        """
        self._width = checked_count("samples", samples, 1)
        if max_policy_lag is not None:
            max_policy_lag = checked_count("max_policy_lag", max_policy_lag, 0)
        self._max_lag = max_policy_lag
        algorithm.check_segments()
        super().__init__(algorithm, evaluators, **rest)
        self._in_flight: InFlight[Sample] = InFlight(self._idle, self._ask_to_sample, self._first)
        self._joined = JoinedSamples(self.graph, self._num_env[0], self._width)
        generator = torch.Generator().manual_seed(seed_of(self._spec.seed, 0, DRAWS))
        self._learn_by(Learner(self.graph.algorithm, generator))
        self._batches = 0  # that were trained on
        self._lags: list[int] = []  # of the samples that are in the batch so far
        self._batch_episodes = Seen(0.0, 0.0, 0.0)

    def step(self) -> dict[str, Any]:
        while len(self._lags) < self._width:
            _, sample, lag = self._in_flight.next(self._batches)
            if self._max_lag is not None and lag > self._max_lag:
                self.dropped += 1
                continue
            self._joined.put(len(self._lags), sample)
            self._lags.append(lag)
            self._batch_episodes = self._batch_episodes.plus(sample.episodes)
        episodes, lags = self._batch_episodes, self._lags
        self._forget()  # first: an update that raises is not made again
        self._anneal()
        self._batches += 1
        self._learner.update(self._joined.batch)
        return self._learned(episodes, self._width * self._horizon_steps) | {"lag": max(lags)}

    def _ask_to_sample(self, number: int) -> None:
        self._ask(number, "sample", self.graph.acting(), self.steps)

    def _forget(self) -> None:
        self._lags, self._batch_episodes = [], Seen(0.0, 0.0, 0.0)

    def _minibatch_faults(self, its: ActorCriticConfig, num_env: int) -> list[Fault]:
        product = f"num_env={num_env} x samples={self._width}"
        unit = "environments of a batch, whose steps stay together"
        return [*its.minibatch_faults(num_env * self._width, unit, product, "samples")]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"draws": self._learner.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.dropped += len(self._lags)
        if "draws" in state:  # not of another optimizer's file
            self._learner.generator.set_state(state["draws"])
        self._forget()
