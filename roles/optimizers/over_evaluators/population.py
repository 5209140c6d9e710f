"""Evolution over evaluators: they try perturbed policies, and a tree adds up the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gmi_drl import runtime
from gmi_drl.placement import counted
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.algorithms.evolution import Evolution
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.evaluators.aggregator import aggregated
from gmi_drl.roles.evaluators.counts import checked_count
from gmi_drl.roles.evaluators.episodes import RETURN, STEPS
from gmi_drl.roles.optimizers.evolution_step import EvolutionStep
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.samples.episodes import Seen

from .base import Learning


class Population(Learning):
    """All directions of a round are tried by whoever is idle; then one step is taken here.

    Directions and their episodes are drawn by seeds, and sums do not depend on who adds them up:
    the parameters are the same bits for any number of evaluators, any tree, and whoever answers
    first or dies.
    """

    trains_on = "returns"

    def __init__(
        self,
        algorithm: type[Algorithm],
        evaluators: Sequence[Any],
        *,
        fan_out: int | None = None,
        **rest: Any,
    ) -> None:
        """`fan_out`: the most that answer one aggregator, or this driver; None: all answer here.

        With more evaluators there are levels of aggregators between, which are actors where
        all evaluators below them are.
        """
        super().__init__(algorithm, evaluators, **rest)
        if fan_out is not None:
            fan_out = checked_count("fan_out", fan_out, 2)
        self._learn_by(Learner(self.graph.algorithm, torch.Generator()))
        assert isinstance(self.graph.algorithm, Evolution)
        self._step = EvolutionStep(self.graph.algorithm, self._learner, self._spec.seed)
        if len(set(self._seeds)) > 1:
            raise RoleError(
                f"evaluators have the seeds {self._seeds}, and all must draw the same directions. "
                "Give all the same seed."
            )
        least = 2 * self.fleet.size
        if self._settings.population < least:
            raise RoleError(
                f"population={self._settings.population}; must be at least {least}, so that each "
                f"of {counted(self.fleet.size, 'evaluator')} has a direction to try both ways. "
                "Raise it, or use fewer evaluators."
            )
        timeout_s = self.fleet.timeout.total_seconds()
        share = min(self._num_env[0], -(-self._settings.directions // self.fleet.size))
        self._root, self._aggregators = aggregated(evaluators, share, timeout_s, fan_out)

    def step(self) -> dict[str, Any]:
        self._anneal()
        parameters, count = self._step.parameters(), self._settings.directions
        weights = self.fleet.put(self.graph.acting())
        tried = self._root.score(weights, self.updates, 0, count)
        pairs, num_lost = self._step.take(tried, parameters, self.updates)
        ended = pairs[pairs[..., RETURN].isfinite()]
        episodes = Seen(len(ended), float(ended[:, RETURN].sum()), float(ended[:, STEPS].sum()))
        return self._learned(episodes, int(pairs[..., STEPS].sum())) | {"nan_returns": num_lost}

    def close(self) -> None:
        if self._aggregators and runtime.is_initialized():
            runtime.kill(self._aggregators)
        super().close()
