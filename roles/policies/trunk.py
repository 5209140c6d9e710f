"""The hidden layers of a policy's network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from .precision import Precision

_ACTIVATIONS: Final[dict[str, type[nn.Module]]] = {
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}


class Trunk(nn.Sequential):
    """Hidden layers with an activation behind each: [B, D] to float32 features [B, `features`].

    With precision bf16 they run in bfloat16; tf32 is the same as fp32 here: see precision.py.
    """

    def __init__(
        self, width: int, hidden: Sequence[int], activation: str, precision: Precision = "fp32"
    ) -> None:
        layers: list[nn.Module] = []
        self.features = width
        for size in hidden:
            layers += [nn.Linear(self.features, size), _ACTIVATIONS[activation]()]
            self.features = size
        super().__init__(*layers)
        self._bf16 = precision == "bf16"

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None) -> None:
        """Make weights orthogonal with gain sqrt(2), and biases 0."""
        for layer in self:
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator=generator)
                layer.bias.zero_()

    def forward(self, observation: Tensor) -> Tensor:
        if not self._bf16:
            return self._features(observation)
        # No cache: copies of weights that a captured graph made would be used outside of it.
        with torch.autocast(observation.device.type, torch.bfloat16, cache_enabled=False):
            return self._features(observation).float()

    def _features(self, observation: Tensor) -> Tensor:
        features: Tensor = super().forward(observation)  # type: ignore[no-untyped-call]
        return features
