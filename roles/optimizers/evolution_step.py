"""The step of evolution: along the directions that were tried, weighted by their returns."""

from __future__ import annotations

import torch
from torch import Tensor

from gmi_drl.roles.algorithms.evolution import Evolution
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.evaluators.aggregator import Tried
from gmi_drl.roles.evaluators.episodes import RETURN, STEPS, direction_of
from gmi_drl.runtime.process.progress import beat

from .descent import one_thread
from .learner import Learner


class EvolutionStep:
    """Makes the whole update in one thread, in the order of the directions."""

    def __init__(self, algorithm: Evolution, learner: Learner, seed: int) -> None:
        self._algorithm, self._learner, self._seed = algorithm, learner, seed

    def parameters(self) -> Tensor:
        """Returns the parameters [n] that are perturbed, on the CPU."""
        parameters = self._learner.parameters
        return parameters.packed(parameters.data.detach()).cpu()

    @torch.no_grad()
    def take(self, tried: Tried, parameters: Tensor, number: int) -> tuple[Tensor, int]:
        """Takes the step of round `number`.

        Returns the results of all episodes [K, 2, 2], and how many returns were not finite. A
        direction is left out where one of its two ways has such a return.
        """
        beat("update")
        algorithm, learner = self._algorithm, self._learner
        pairs, observed = map(torch.from_numpy, tried.whole())
        finite = pairs.isfinite().all(-1)
        num_lost = int((~finite).sum())
        directions = finite.all(1).nonzero().squeeze(-1)
        if not len(directions):
            raise RoleError(
                f"round {number + 1}: {num_lost} of {2 * len(pairs)} episodes paid, showed or did "
                "what is not finite, and no direction has two that did not. Lower algorithm.noise, "
                f"{algorithm.settings.noise:g}, or learning_rate; or look for NaN in the "
                "environment."
            )
        episodes = pairs[directions]
        bonus = getattr(algorithm.settings, "survival_bonus", 0.0)  # for each step
        decay = getattr(algorithm.settings, "weight_decay", 0.0)
        scores = episodes[..., RETURN] - bonus * episodes[..., STEPS]
        with one_thread():
            gradient, direction = decay * parameters, torch.empty_like(parameters)
            weights = algorithm.weights(scores).tolist()
            for index, weight in zip(directions.tolist(), weights, strict=True):
                if weight:
                    direction_of(self._seed, number, index, direction)
                    gradient.sub_(direction, alpha=weight)
            norm = torch.linalg.vector_norm(gradient.double())
            spread = scores.std(correction=0)
            stats = torch.stack([scores.mean(), spread, scores.max(), norm]).float()
            flat = torch.zeros_like(learner.parameters.data)
            learner.parameters.unpack(gradient, flat)
            learner.apply_with(flat, stats, self._moments(episodes[..., STEPS].sum(), observed))
        return pairs, num_lost

    def _moments(self, count: Tensor, seen: Tensor) -> Tensor:
        """Returns count, means and sums of squared deviations of observations, for the normaliser.

        It is empty where there is none.
        """
        normalizer = self._algorithm.normalizers.observations
        if normalizer is None:
            return seen.new_zeros(0)
        total, squares = seen.view(2, -1)
        mean = total / count
        deviations = (squares - total * mean).clamp_(min=0.0)
        return torch.cat([count[None], normalizer.mean.double().cpu() + mean, deviations])
