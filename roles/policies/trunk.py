"""The hidden layers of a policy's network, and the precision of their matrix products."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Final, Literal

import torch
from torch import Tensor, nn

Precision = Literal["fp32", "tf32", "bf16"]  # algorithm.precision

_ACTIVATIONS: Final = {"elu": nn.ELU, "tanh": nn.Tanh, "relu": nn.ReLU}


class Trunk(nn.Sequential):
    """Hidden layers with an activation behind each: [B, D] to float32 features [B, `features`].

    With precision bf16 they run in bfloat16; tf32 is fp32 here, and is `set_matmul_precision`'s.
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


def set_matmul_precision(precision: Precision, device: torch.device) -> None:
    """Let float32 matrix products of this process round to TF32 if `precision` is tf32; else not.

    Said either way, so that it is the config that decides, and no environment variable
    (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE) or library. NVIDIA_TF32_OVERRIDE=0 alone is beyond us: it
    keeps NVIDIA's libraries from TF32. CPU cores compute in float32.
    """
    high = precision == "tf32" and device.type == "cuda"
    # This call keeps torch's older and newer switches for it in step; torch refuses to multiply
    # when they differ. torch 2.9 warns that the call will be deprecated; later ones take that back.
    warnings.filterwarnings("ignore", message="Please use the new API settings to control TF32")
    torch.set_float32_matmul_precision("high" if high else "highest")
