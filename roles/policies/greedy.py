"""The base of policies that act by their mode in training as well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .policy import PlainPolicy

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch


class NoiselessPolicy(PlainPolicy, ABC):
    """Acts by its mode, draws nothing, and values nothing, as it learns from whole episodes."""

    noise_columns = 0

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        """Draws nothing."""

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        step["action"].copy_(self.mode(step["observation"]))
        return step["action"]

    @abstractmethod
    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        """Returns the action [B, A] for each observation [B, O]."""
