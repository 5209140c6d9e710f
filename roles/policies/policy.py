"""Defines a policy, as those who sample, evaluate and serve with it see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch


class Policy(Protocol):
    """A network that acts; it knows no loss and no process.

    T = steps, N = environments, D = width of an observation, A = numbers of an action row.
    """

    network: nn.Module  # its parameters are what is trained, saved and published
    action_columns: int  # A
    noise_columns: int  # random numbers that one action consumes

    @property
    def columns(self) -> Mapping[str, int]:
        """The columns that `act` and `finish` write: widths by name, 0 for a single number."""

    @property
    def spans(self) -> Mapping[str, tuple[str, str]]:
        """Neighbouring columns, first and last, that `act` writes at once by one name."""

    @property
    def constants(self) -> Mapping[str, Tensor]:
        """The tensors that acting depends on, alike in all rows; copied before each horizon."""

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        """Draw what a horizon's actions consume into `batch["noise"]` [T, N, noise_columns]."""

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        """Write `step["action"]` [N, A] and what else is to be recorded; return the actions.

        `step` has the parts of a batch at one time: the normalised `observation` [N, D], `noise`,
        and this policy's columns and spans. The same work on the same memory each time.
        """

    def finish(self, batch: Batch) -> None:
        """Fill in the columns that are made for all steps of a horizon at once."""

    def value(self, observation: Tensor) -> Tensor:
        """The value [N] of normalised observations, where the algorithm bootstraps by it."""

    def mode(self, observation: Tensor) -> Tensor:
        """The most likely, or greedy, action rows [N, A] for normalised observations [N, D]."""
