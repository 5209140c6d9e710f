"""Defines a policy, as those who sample with it see it; and acting greedily with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from gmi_drl.roles.graphs import Graph, Pool

from .normalize import RunningNormalizer

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
    def column_groups(self) -> Mapping[str, tuple[str, str]]:
        """Neighbouring columns, first and last, that `act` writes at once by one name."""

    @property
    def row_constants(self) -> Mapping[str, Tensor]:
        """The tensors that acting depends on, alike in all rows; copied before each horizon."""

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        """Draw what a horizon's actions consume into `batch["noise"]` [T, N, noise_columns]."""

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        """Write `step["action"]` [N, A] and what else is to be recorded; return the actions.

        `step` has the parts of a batch at one time: the normalised `observation` [N, D], `noise`,
        and this policy's columns and groups. The same work on the same memory each time.
        """

    def finish(self, batch: Batch) -> None:
        """Fill in the columns that are made for all steps of a horizon at once."""

    def value(self, observation: Tensor) -> Tensor:
        """The value [N] of normalised observations, where the algorithm bootstraps by it."""

    def mode(self, observation: Tensor) -> Tensor:
        """The most likely, or greedy, action rows [N, A] for normalised observations [N, D]."""


class GreedyActor:
    """Acts in its most likely way with a policy that does not change."""

    def __init__(self, policy: Policy, normalizer: RunningNormalizer | None) -> None:
        self._policy, self._normalizer = policy, normalizer

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """The policy's action rows [N, A] for raw observations [N, D]."""
        seen = observation.to(torch.float32)  # images are bytes
        if self._normalizer is not None:
            seen = self._normalizer.normalize(seen)
        return self._policy.mode(seen)


class CapturedActor(GreedyActor):
    """Acts as a `GreedyActor` does, by a CUDA graph for each shape of observations.

    It is captured when the shape first comes. Actions are this object's own, until the next ones
    for observations of that shape.
    """

    def __init__(self, policy: Policy, normalizer: RunningNormalizer | None, pool: Pool) -> None:
        super().__init__(policy, normalizer)
        self._pool = pool
        self._held: dict[torch.Size, tuple[Tensor, Tensor, Graph]] = {}

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        if observation.shape not in self._held:
            self._held[observation.shape] = self._capture(observation)
        seen, action, graph = self._held[observation.shape]
        seen.copy_(observation)
        graph()
        return action

    def _capture(self, observation: Tensor) -> tuple[Tensor, Tensor, Graph]:
        seen, action = observation.clone(), super().act(observation).clone()
        act = super().act

        def work() -> None:
            action.copy_(act(seen))

        return seen, action, Graph(work, seen.device, pool=self._pool, name="acting")
