"""Defines a policy as samplers see it, and actors that act with a fixed policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
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

    T = steps, N = environments, D = width of an observation, A = numbers of an action row. A policy
    that remembers has a state [N, S] of its environments, zero where an episode begins; others are
    given None.
    """

    network: nn.Module  # its parameters are what is trained, saved and published
    action_columns: int  # A
    noise_columns: int  # random numbers that one action consumes
    state_columns: int  # S; 0: it does not remember

    @property
    def columns(self) -> Mapping[str, int]:
        """The columns that `act` and `finish` write: widths by name, 0 for a single number."""

    @property
    def column_groups(self) -> Mapping[str, tuple[str, str]]:
        """Neighbouring columns, first and last, that `act` writes at once by one name."""

    @property
    def row_constants(self) -> Mapping[str, Tensor]:
        """The tensors that acting depends on, the same for all rows; copied before each horizon."""

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        """Draw what a horizon's actions consume into `batch["noise"]` [T, N, noise_columns]."""

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        """Writes `step["action"]` [N, A] and the other recorded columns, and returns the actions.

        `step` has the parts of a batch at one time: the normalised `observation` [N, D], `noise`,
        and this policy's columns and groups. Where it remembers there is also `state` [N, S], the
        same tensor at all times, which becomes the state after this step. It does the same work on
        the same memory each time.
        """

    def finish(self, batch: Batch) -> None:
        """Fills the columns that are computed for all steps of a horizon at once."""

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        """The value [N] of normalised observations, where the algorithm bootstraps by it."""

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        """The most likely, or greedy, action rows [N, A] for normalised observations [N, D].

        `state` [N, S] becomes the state after this step.
        """


class PlainPolicy:
    """Records nothing but its actions, has no columns to fill after a horizon, and no values."""

    state_columns = 0
    columns: Mapping[str, int] = {}
    column_groups: Mapping[str, tuple[str, str]] = {}
    row_constants: Mapping[str, Tensor] = {}

    def finish(self, batch: Batch) -> None:
        """Has nothing to fill in."""

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        """Is not called: its algorithm values what follows by itself, or nothing."""
        raise AssertionError(f"a {type(self).__name__} values nothing")


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


class GreedyActor:
    """Takes the most likely actions of a policy that does not change, in the same environments."""

    def __init__(self, policy: Policy, normalizer: RunningNormalizer | None) -> None:
        self._policy, self._normalizer = policy, normalizer
        self.remembers = policy.state_columns > 0
        self._state: Tensor | None = None

    @property
    def changed(self) -> list[Tensor]:
        """Returns the tensors that acting changes, once it has acted."""
        return [] if self._state is None else [self._state]

    @torch.no_grad()
    def act(self, observation: Tensor, began: Tensor) -> Tensor:
        """Returns the policy's action rows [N, A] for raw observations [N, D].

        `began` [N] bool: where they are the first of an episode.
        """
        rows = observation.to(torch.float32)  # images are bytes
        if self._normalizer is not None:
            rows = self._normalizer.normalize(rows)
        if not self.remembers:
            return self._policy.mode(rows)
        if self._state is None:
            self._state = rows.new_zeros(len(rows), self._policy.state_columns)
        self._state.masked_fill_(began[:, None], 0.0)
        return self._policy.mode(rows, self._state)


class SamplingActor:
    """Draws actions as in training, always in the same environments."""

    def __init__(
        self,
        policy: Policy,
        normalizer: RunningNormalizer | None,
        batch: Batch,
        generator: torch.Generator,
    ) -> None:
        """`batch`: the buffers of one step of all environments."""
        self._policy, self._normalizer, self._generator = policy, normalizer, generator
        self._batch, (self._step,) = batch, batch.steps()
        for name, constant in policy.row_constants.items():
            batch.row_constants[name].copy_(constant)
        self._state: Tensor | None = None
        if batch.sequences is not None:
            self._state = self._step["state"] = torch.zeros_like(batch.sequences.state)

    @torch.no_grad()
    def act(self, observation: Tensor, began: Tensor) -> Tensor:
        """Returns action rows [N, A] as `GreedyActor.act` does, valid until the next call."""
        step = self._step
        rows = observation.to(torch.float32)
        step["observation"] = rows if self._normalizer is None else self._normalizer.normalize(rows)
        if self._state is not None:
            self._state.masked_fill_(began[:, None], 0.0)
        self._policy.noise(self._generator, self._batch)
        return self._policy.act(step)


class CapturedActor(GreedyActor):
    """Acts as a `GreedyActor` does, by a CUDA graph that is captured at the first call.

    Actions are valid until the next call.
    """

    def __init__(self, policy: Policy, normalizer: RunningNormalizer | None, pool: Pool) -> None:
        super().__init__(policy, normalizer)
        self._pool = pool
        self._captured: tuple[Tensor, Tensor, Tensor, Graph] | None = None

    @torch.no_grad()
    def act(self, observation: Tensor, began: Tensor) -> Tensor:
        if self._captured is None:
            self._captured = self._capture(observation, began)
        observed, starts, action, graph = self._captured
        observed.copy_(observation)
        starts.copy_(began)
        graph()
        return action

    def _capture(self, observation: Tensor, began: Tensor) -> tuple[Tensor, Tensor, Tensor, Graph]:
        act, observed, starts = super().act, observation.clone(), torch.ones_like(began)
        action = act(observed, starts).clone()

        def work() -> None:
            action.copy_(act(observed, starts))

        graph = Graph(work, observed.device, keep=self.changed, pool=self._pool, name="acting")
        for state in self.changed:
            state.zero_()
        return observed, starts, action, graph
