"""Shares the base of policies that act by their mode in training as well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch


class NoiselessPolicy(ABC):
    """Acts by its mode, draws nothing, and values nothing, as it learns from whole episodes."""

    state_columns = noise_columns = 0
    columns: Mapping[str, int] = {}
    column_groups: Mapping[str, tuple[str, str]] = {}
    row_constants: Mapping[str, Tensor] = {}

    def noise(self, generator: torch.Generator, batch: Batch) -> None:  # noqa: B027
        """Draws nothing."""

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        step["action"].copy_(self.mode(step["observation"]))
        return step["action"]

    def finish(self, batch: Batch) -> None:  # noqa: B027
        """Makes nothing for all steps at once."""

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        raise AssertionError("a policy that learns from whole episodes values nothing")

    @abstractmethod
    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        """Returns the action [B, A] for each observation [B, O]."""
