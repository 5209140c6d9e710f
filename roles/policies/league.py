"""Acts against snapshots of itself: a league of the last few.

N = A E rows, of A agents in E environments, those of an agent side by side (`envs.agents`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .actor_critic import ActorCriticPolicy
from .normalize import RunningNormalizer, normalized

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch


class Snapshot:
    """A policy as it was: a network, and the normaliser of its observations."""

    def __init__(self, network: nn.Module, normalizer: RunningNormalizer | None) -> None:
        self._network = copy.deepcopy(network).requires_grad_(False)
        self._normalizer = copy.deepcopy(normalizer)

    @property
    def log_std(self) -> Tensor:
        """Returns the logarithms of the deviations that it acts with."""
        network: Any = self._network
        log_std: Tensor = network.log_std
        return log_std

    @torch.no_grad()
    def take(self, network: nn.Module, normalizer: RunningNormalizer | None) -> None:
        """Copies a policy as it is now into its own tensors."""
        torch._foreach_copy_(list(self._network.parameters()), list(network.parameters()))
        if self._normalizer is not None and normalizer is not None:
            self._normalizer.load_state_dict(normalizer.state_dict())

    def head(self, observation: Tensor) -> Tensor:
        """Returns what the network gives for raw observations [B, D]."""
        inputs = torch.empty_like(observation, dtype=torch.float32)
        head: Tensor = self._network(normalized(self._normalizer, observation, inputs))
        return head

    def state_dict(self) -> dict[str, Any]:
        normalizer = self._normalizer
        return {
            "network": dict(self._network.state_dict()),
            "normalizer": None if normalizer is None else normalizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._network.load_state_dict(state["network"])
        if self._normalizer is not None:
            self._normalizer.load_state_dict(state["normalizer"])


class LeaguePolicy(ActorCriticPolicy):
    """Acts for one agent of each environment, and by its snapshots for the others.

    Which agent that is, and which snapshot plays, goes round with the environment's number. Greedy
    actions and values are those of the policy itself.
    """

    def __init__(
        self,
        policy: ActorCriticPolicy,
        normalizer: RunningNormalizer | None,
        agents: int,
        snapshots: int,
    ) -> None:
        super().__init__(policy.network)
        self.agents = agents
        self.snapshots = [Snapshot(policy.network, normalizer) for _ in range(snapshots)]
        self._rows: dict[int, list[Tensor]] = {}

    def learns(self, num_rows: int, device: torch.device) -> Tensor:
        """Returns which rows [N] it acts for itself, bool."""
        environments = torch.arange(num_rows // self.agents, device=device)
        seats = torch.arange(self.agents, device=device)[:, None]
        return (environments % self.agents == seats).flatten()

    def opponent(self, num_rows: int, device: torch.device) -> Tensor:
        """Returns which snapshot plays in each environment [E]."""
        environments = torch.arange(num_rows // self.agents, device=device)
        return environments // self.agents % len(self.snapshots)

    @property
    def alone(self) -> ActorCriticPolicy:
        """Returns the policy that acts for all agents itself."""
        return ActorCriticPolicy(self.network)

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        super().noise(generator, batch)
        if not self.distribution.deviations:
            return
        noise = batch["noise"]
        for snapshot, rows in zip(self.snapshots, self._rows_of(noise[0]), strict=True):
            drawn = noise[:, rows]  # a copy
            self.distribution.noise(drawn.shape[:2], snapshot.log_std, generator, drawn)
            noise.index_copy_(1, rows, drawn)

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        head = step["head"]
        head.copy_(self.network(step["observation"]))
        for snapshot, rows in zip(self.snapshots, self._rows_of(head), strict=True):
            if len(rows):
                head.index_copy_(0, rows, snapshot.head(step["raw_observation"][rows]))
        return self.distribution.sample(step["parameters"], step["noise"], step["action"])

    def _rows_of(self, head: Tensor) -> list[Tensor]:
        """Returns the rows that each snapshot acts for."""
        count = len(head)
        if count not in self._rows:
            others = ~self.learns(count, head.device)
            opponents = self.opponent(count, head.device).repeat(self.agents)
            self._rows[count] = [
                (others & (opponents == index)).nonzero()[:, 0]
                for index in range(len(self.snapshots))
            ]
        return self._rows[count]
