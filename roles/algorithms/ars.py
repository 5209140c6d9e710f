"""Augmented random search (Mania et al., 2018)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from gmi_drl.placement import AlgorithmConfig, ARSConfig

from .evolution import Evolution


class ARS(Evolution):
    """Follows the best directions, weighted by differences of returns over their deviation."""

    Settings: ClassVar[type[AlgorithmConfig]] = ARSConfig
    settings: ARSConfig

    def weights(self, scores: Tensor) -> Tensor:
        """Returns the step of each direction: 0 for all but the `top_directions`."""
        best = scores.max(1).values.argsort(descending=True, stable=True)
        top = best[: self.settings.top_directions]
        deviation = scores[top].std(correction=0)
        weights = torch.zeros_like(scores[:, 0])
        if deviation > 0:
            weights[top] = (scores[top, 0] - scores[top, 1]) / (len(top) * deviation)
        return weights
