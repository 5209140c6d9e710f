"""Evolution strategies as OpenAI's (Salimans et al., 2017)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from gmi_drl.placement import AlgorithmConfig, ESConfig

from .evolution import Evolution, centred_ranks


class ES(Evolution):
    """Estimates the gradient of the expected rank of a perturbed policy's return."""

    Settings: ClassVar[type[AlgorithmConfig]] = ESConfig
    settings: ESConfig

    def weights(self, scores: Tensor) -> Tensor:
        """Returns differences of ranks, over the population and the noise's deviation."""
        ranks = centred_ranks(scores)
        return (ranks[:, 0] - ranks[:, 1]) / (ranks.numel() * self.settings.noise)
