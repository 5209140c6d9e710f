"""Running mean and variance, merged exactly across GMIs.

Every GMI measures the moments of its own batch, the moments are gathered, and every GMI merges
them in the same order in float64: k GMIs on shards of a batch end with the normaliser that one
GMI would have on the whole (up to float64 rounding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gmi_drl.placement import AlgorithmConfig

SCALAR_MOMENTS: Final = 3  # of single numbers: count, mean, sum of squared deviations


def batch_moments(batch: Tensor, out: Tensor, present: Tensor | None = None) -> Tensor:
    """Writes count, means and squared deviations of `batch` [B, D] into `out` [1 + 2 D] float64.

    Two passes, in the batch's own precision, shifted by the mean: no cancellation. Bytes are made
    float32. `present` [B] bool: the rows that count; None: all.
    """
    if batch.dtype == torch.uint8:
        batch = batch.float()
    rows, width = batch.shape
    if present is not None:
        weight = present.to(batch.dtype)[:, None]
        count = weight.sum()
        mean = (batch * weight).sum(0) / count.clamp(min=1.0)
        out[:1] = count
        out[1 : 1 + width] = mean
        out[1 + width :] = (batch - mean).square_().mul_(weight).sum(0)
        return out
    mean = batch.mean(0)
    out[:1].fill_(rows)
    out[1 : 1 + width] = mean
    out[1 + width :] = (batch - mean).square_().sum(0)
    return out


def merge_moments(moments: Tensor) -> Tensor:
    """Returns the moments [1 + 2 D] of the union of k batches, from those of each [k, 1 + 2 D].

    Chan, Golub and LeVeque (1979): pairwise update of mean and sum of squares, in rank order.
    Does not wait for a device.
    """
    width = (moments.shape[1] - 1) // 2
    merged = moments[0].clone()
    for row in moments[1:]:
        count = merged[0] + row[0]
        divisor = count.clamp(min=1.0)  # two empty batches are an empty one
        delta = row[1 : 1 + width] - merged[1 : 1 + width]
        merged[1 + width :] += row[1 + width :] + delta.square() * (merged[0] * row[0] / divisor)
        merged[1 : 1 + width] += delta * (row[0] / divisor)
        merged[0] = count
    return merged


class RunningNormalizer:
    """Normalises rows of width D by all the moments merged so far; the identity before any.

    The statistics change only in `update`, so that one iteration is sampled and trained with
    the same ones.
    """

    def __init__(self, width: int, *, clip: float, device: torch.device | str = "cpu") -> None:
        self.moments = torch.zeros(1 + 2 * width, dtype=torch.float64, device=device)
        self.width = width
        self._clip = clip
        self.mean = torch.zeros(width, device=device)
        self.inv_std = torch.ones(width, device=device)

    def update(self, moments: Tensor) -> None:
        """Merge the moments [1 + 2 D] of a batch (already merged over all GMIs).

        Does not wait for a device if they are on that of the statistics.
        """
        merged = self.moments
        merged.copy_(merge_moments(torch.stack([merged, moments.to(merged.device, torch.float64)])))
        self.refresh()

    def refresh(self) -> None:
        """Computes mean and deviation anew: `moments` were written."""
        count = self.moments[0]
        variance = self.moments[1 + self.width :] / count.clamp(min=1.0)
        self.mean.copy_(self.moments[1 : 1 + self.width])
        self.inv_std.copy_((variance + 1e-8).rsqrt_().masked_fill_(count == 0, 1.0))

    @property
    def num_moments(self) -> int:
        """Counts the numbers that `measure` writes."""
        return 1 + 2 * self.width

    def measure(self, batch: Tensor, out: Tensor, present: Tensor | None = None) -> None:
        """Writes the moments of rows [T, N, D] that are `present` [T, N], or of all, into `out`."""
        batch_moments(batch.flatten(0, 1), out, None if present is None else present.flatten())

    def merged(self, everyone: Tensor) -> Tensor:
        """Returns the moments of the union of batches whose moments are `everyone` [k, n]."""
        return merge_moments(everyone)

    @property
    def tensors(self) -> list[Tensor]:
        """Returns the tensors that `update` and `load` change, in place."""
        return [self.moments, self.mean, self.inv_std]

    def normalize(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """(rows - mean) / std, clipped; [B, D]."""
        centred = torch.sub(rows, self.mean, out=out)
        return centred.mul_(self.inv_std).clamp_(-self._clip, self._clip)

    def denormalize(self, rows: Tensor) -> Tensor:
        """rows * std + mean."""
        return rows / self.inv_std + self.mean

    def state_dict(self) -> dict[str, Tensor]:
        return {"moments": self.moments.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.moments.copy_(state["moments"])
        self.refresh()


def normalized(normalizer: RunningNormalizer | None, rows: Tensor, out: Tensor) -> Tensor:
    """Write `rows` into `out`, normalised if there is a normaliser."""
    return out.copy_(rows) if normalizer is None else normalizer.normalize(rows, out=out)


@dataclass(frozen=True)
class Normalizers:
    """The normalisers of a policy, each None if the config has it off."""

    observations: RunningNormalizer | None
    values: RunningNormalizer | None

    @classmethod
    def of(
        cls, settings: AlgorithmConfig, obs_dim: int, device: torch.device | str = "cpu"
    ) -> Normalizers:
        """Returns new ones, as the config asks for."""
        observations = values = None
        if settings.normalize_observation:
            observations = RunningNormalizer(obs_dim, clip=10.0, device=device)
        if settings.learns_value_scale:
            values = RunningNormalizer(1, clip=float("inf"), device=device)
        return cls(observations, values)
