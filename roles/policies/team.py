"""Values the actions of a team by the values of each agent's action, and acts by these.

B = rows, A = agents, D = numbers that one agent sees, n = actions of each. The observations of all
agents side by side, [B, A D], are the state that values are mixed by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .policy import PlainPolicy
from .trunk import Trunk, orthogonal_

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch


class Mixer(nn.Module):
    """Mixes agents' values to one that rises with each (Rashid et al., 2018, section 4.1).

    Weights come from the state through networks of their own, as absolute values.
    """

    def __init__(self, agents: int, state: int, hidden: int) -> None:
        """`state`: numbers of the state."""
        super().__init__()
        self._shape = (agents, hidden)
        self.weights = nn.Linear(state, agents * hidden)
        self.bias = nn.Linear(state, hidden)
        self.last_weights = nn.Linear(state, hidden)
        self.last_bias = nn.Sequential(nn.Linear(state, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Returns the value [B] of the team, by those of its agents [B, A]."""
        weights = self.weights(state).abs().view(-1, *self._shape)
        mixed = torch.bmm(values[:, None], weights)[:, 0] + self.bias(state)
        hidden = nn.functional.elu(mixed) * self.last_weights(state).abs()
        total: Tensor = hidden.sum(-1) + self.last_bias(state)[:, 0]
        return total


class TeamValues(nn.Module):
    """The values [B, A, n] of all actions of each agent, by one network for all.

    An input says which agent it is, so that agents that see the same may act differently.
    """

    def __init__(
        self,
        agents: int,
        width: int,
        choices: int,
        trunk: Trunk,
        mixing: int | None,
        generator: torch.Generator | None = None,
    ) -> None:
        """`width`: D; `trunk`: of D + A numbers; `mixing`: see Mixer; None: values are added."""
        super().__init__()
        self.agents, self._width = agents, width
        self.trunk, self.head = trunk, nn.Linear(trunk.features, choices)
        self.mixer = None if mixing is None else Mixer(agents, agents * width, mixing)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                orthogonal_(layer, 1.0, generator)
        self.trunk.initialise(generator)

    def describe(self) -> dict[str, Any]:
        """Returns what its parameters' names and shapes do not say."""
        return {"agents": self.agents, "mixed": self.mixer is not None}

    def forward(self, observation: Tensor) -> Tensor:
        rows = observation.view(-1, self.agents, self._width)
        ids = torch.eye(self.agents, device=rows.device, dtype=rows.dtype)
        values: Tensor = self.head(
            self.trunk(torch.cat([rows, ids.expand(rows.shape[0], -1, -1)], -1))
        )
        return values

    def total(self, values: Tensor, observation: Tensor) -> Tensor:
        """Returns the team's value [B] by the `values` [B, A] of its agents' actions."""
        if self.mixer is None:
            return values.sum(-1)
        total: Tensor = self.mixer(values, observation)
        return total


class TeamPolicy(PlainPolicy):
    """Each agent acts greedily by its own values, or, in a share `epsilon` of steps, at random."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.action_columns: int = network.agents
        self.noise_columns = 2 * network.agents  # whether to explore, then how
        # A tensor, as acting may be captured.
        self.epsilon = torch.ones((), device=next(network.parameters()).device)

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        batch["noise"].uniform_(generator=generator)

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        """Writes and returns the actions [N, A] for `step["observation"]` [N, A D]."""
        values = self.network(step["observation"])
        exploration, choice = step["noise"].chunk(2, -1)
        random_actions = (choice * values.shape[-1]).floor()
        greedy = values.argmax(-1).to(random_actions.dtype)
        return step["action"].copy_(torch.where(exploration < self.epsilon, random_actions, greedy))

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        total: Tensor = self.network.total(self.network(observation).amax(-1), observation)
        return total

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        greedy: Tensor = self.network(observation).argmax(-1).float()
        return greedy
