"""A policy as one vector: what trainers publish and agents act with."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .flat_parameters import FlatParameters
from .normalize import Normalizers, RunningNormalizer


class PublishedPolicy:
    """The parameters of a policy and its normalisers' statistics, to and from float32 [numel].

    In this order: parameters as `FlatParameters` lays them out, with padding, then means and
    1 / deviations of the observation normaliser and of the value normaliser, as far as there are
    any. Both ends build it from the same config, so that nothing but numbers travels.
    """

    def __init__(self, parameters: FlatParameters, normalizers: Normalizers) -> None:
        self._parameters = parameters
        both = (normalizers.observations, normalizers.values)
        self._normalizers = [one for one in both if one is not None]
        self.numel = parameters.numel + sum(2 * one.width for one in self._normalizers)

    @torch.no_grad()
    def write(self, out: Tensor) -> None:
        """Write the policy as it is now into `out` [numel]."""
        self._check(out)
        out[: self._parameters.numel].copy_(self._parameters.data)
        for normalizer, part in self._parts(out):
            normalizer.write_statistics(part)

    @torch.no_grad()
    def load(self, vector: Tensor) -> None:
        """Make the policy what another one wrote: `vector` [numel] is copied."""
        self._check(vector)
        self._parameters.data.copy_(vector[: self._parameters.numel])
        for normalizer, part in self._parts(vector):
            normalizer.load_statistics(part)

    def _parts(self, vector: Tensor) -> Iterator[tuple[RunningNormalizer, Tensor]]:
        start = self._parameters.numel
        for normalizer in self._normalizers:
            yield normalizer, vector[start : start + 2 * normalizer.width]
            start += 2 * normalizer.width

    def _check(self, vector: Tensor) -> None:
        if vector.shape != (self.numel,):
            raise ValueError(
                f"a policy vector of shape {tuple(vector.shape)}: this policy has {self.numel} "
                "numbers. Build both ends from the same environment and algorithm section."
            )
