"""Trunks for images: `nature` (Mnih et al., 2015) and `impala` (Espeholt et al., 2018).

They take observations as vectors, as all networks do, and restore the image in each.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from gmi_drl.placement import CONVOLUTIONAL, hidden_sizes
from gmi_drl.roles.envs.errors import EnvSpecError

from .trunk import HiddenLayers, Precision

_MOST_CHANNELS: Final = 32  # of an image whose channels come last


class ConvolutionalTrunk(HiddenLayers):
    """Takes images, as vectors [..., D].

    `in_bytes`: the numbers are 0 to 255, and are divided by 255. `layer_norm`: LayerNorm behind the
    dense layer.
    """

    def __init__(
        self,
        name: str,
        space: spaces.Space[Any],
        *,
        in_bytes: bool = False,
        precision: Precision = "fp32",
        layer_norm: bool = False,
    ) -> None:
        """EnvSpecError where the space is no image, or one that is too small."""
        super().__init__()
        self._shape, self._channels_last = image_of(space, name)
        self._scale = 1.0 / 255.0 if in_bytes else 1.0
        self.bf16 = precision == "bf16"
        channels, height, width = self._shape
        self.convolutions = (_nature if name == "nature" else _impala)(channels)
        try:
            with torch.no_grad():
                flat = self.convolutions(torch.zeros(1, channels, height, width)).numel()
        except RuntimeError:
            raise EnvSpecError(
                f"algorithm.network={name!r}: images of {height} x {width} are smaller than "
                "its kernels. Use impala, which takes 8 x 8 and more, or hidden sizes."
            ) from None
        (self.features,) = hidden_sizes(name)
        self.dense = nn.Linear(flat, self.features)
        self.norm = nn.LayerNorm(self.features) if layer_norm else nn.Identity()

    def seen(self, observation: Tensor) -> Tensor:
        channels, height, width = self._shape
        leading = observation.shape[:-1]
        if self._channels_last:
            image = observation.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        else:
            image = observation.reshape(-1, channels, height, width)
        flat = self.convolutions(image * self._scale).flatten(1)
        features: Tensor = torch.relu(self.norm(self.dense(flat)))
        return features.reshape(*leading, self.features)


def image_of(space: spaces.Space[Any], name: str) -> tuple[tuple[int, int, int], bool]:
    """Returns (channels, height, width) of an image space, and whether the channels come last.

    EnvSpecError for another one; `name` is the network that wants it.
    """
    shape = space.shape if isinstance(space, spaces.Box) else None
    if shape is not None and len(shape) == 2:
        return (1, shape[0], shape[1]), False
    if shape is None or len(shape) != 3 or not np.prod(shape):
        text = " ".join(str(space).split())
        raise EnvSpecError(
            f"algorithm.network={name!r}: observation space {text} is no image, a Box of "
            "[height, width], with channels before or behind. Use a list of hidden sizes, such "
            "as [256, 128]."
        )
    first, middle, last = shape
    # Two equal sizes are height and width; else the channels are the fewest.
    is_last = first == middle or (middle != last and last <= min(first, middle, _MOST_CHANNELS))
    if is_last:
        return (last, first, middle), True
    return (first, middle, last), False


def is_convolutional(network: object) -> bool:
    """Tells whether `algorithm.network` names a convolutional one."""
    return isinstance(network, str) and network in CONVOLUTIONAL


def _nature(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, 4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
    )  # fmt: skip


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        residual: Tensor = self.second(torch.relu(self.first(torch.relu(image))))
        return image + residual


def _impala(channels: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in (16, 32, 32):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, 2, 1),
            _Residual(width), _Residual(width),
        ]  # fmt: skip
        channels = width
    return nn.Sequential(*layers, nn.ReLU())
