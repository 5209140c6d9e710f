"""A network for games, and the policy that acts by a search with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gmi_drl.placement import AlphaZeroConfig, hidden_sizes
from gmi_drl.roles.games import Game, GameError
from gmi_drl.roles.games.tree import Evaluate, Exploration, SearchTrees
from gmi_drl.runtime.process.progress import beat

from .policy import NoiselessPolicy
from .trunk import ACTIVATIONS, HiddenLayers, Trunk, dense_trunk


class ResidualBlock(nn.Module):
    """Two convolutions whose output is added to their input (He et al., 2016)."""

    def __init__(self, channels: int, activation: str) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self._activation = ACTIVATIONS[activation]()

    def forward(self, seen: Tensor) -> Tensor:
        act = self._activation
        output: Tensor = act(seen + self.second(act(self.first(seen))))
        return output


class ResidualTower(HiddenLayers):
    """Residual blocks over a board of planes, and dense layers behind them.

    There is no normalisation: each block begins as one that changes nothing.
    """

    def __init__(self, shape: tuple[int, ...], settings: AlphaZeroConfig) -> None:
        super().__init__()
        channels, activation = settings.channels, settings.activation
        self._shape, self.bf16 = shape, settings.precision == "bf16"
        self._activation = ACTIVATIONS[activation]()
        self.enter = nn.Conv2d(shape[0], channels, 3, padding=1)
        blocks = (ResidualBlock(channels, activation) for _ in range(settings.blocks))
        self.blocks = nn.Sequential(*blocks)
        self.leave = nn.Conv2d(channels, max(channels // 4, 1), 1)
        width = self.leave.out_channels * shape[1] * shape[2]
        self.dense = Trunk(width, hidden_sizes(settings.network), activation, "fp32")
        self.features = self.dense.features

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None) -> None:
        super().initialise(generator)
        for block in self.modules():
            if isinstance(block, ResidualBlock):
                nn.init.zeros_(block.second.weight)

    def seen(self, observation: Tensor) -> Tensor:
        act, board = self._activation, torch.unflatten(observation, 1, self._shape)
        board = board.contiguous(memory_format=torch.channels_last)
        board = act(self.leave(self.blocks(act(self.enter(board)))))
        features: Tensor = self.dense(board.flatten(1))
        return features


class GameNetwork(nn.Module):
    """Gives preferences [B, A] for moves and behind them the value of positions [B, D].

    Outputs begin at 0 for all positions.
    """

    def __init__(
        self, game: Game, settings: AlphaZeroConfig, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.game, self._settings = game, settings
        self.trunk: HiddenLayers
        if settings.blocks:
            self.trunk = ResidualTower(game.shape, settings)
        else:
            self.trunk = dense_trunk(settings, int(np.prod(game.shape)))
        self.head = nn.Linear(self.trunk.features, game.actions + 1)
        self.trunk.initialise(generator)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def describe(self) -> dict[str, Any]:
        """Returns what its parameters do not say: see ActorCritic.describe."""
        settings = self._settings
        return {"game": self.game.name, "activation": settings.activation}

    def forward(self, observation: Tensor) -> Tensor:
        output = self.head(self.trunk(observation))
        return torch.cat([output[:, :-1], output[:, -1:].tanh()], 1)

    @property
    def evaluate(self) -> Evaluate:
        """Returns the function that a search evaluates leaves by."""
        device = self.head.weight.device

        def evaluate(
            observations: NDArray[np.float32],
        ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            beat("rollout")
            with torch.inference_mode():
                inputs = torch.from_numpy(observations).flatten(1)
                outputs = self(inputs.to(device)).cpu().numpy()
            return outputs[:, :-1], outputs[:, -1]

        return evaluate


class SearchPolicy(NoiselessPolicy):
    """Acts by the move that a search visits most, or without a search by the network."""

    action_columns = 1

    def __init__(
        self, network: Any, simulations: int, exploration: Exploration | None = None
    ) -> None:
        """`simulations`: leaves that a search for a move evaluates; 0: it does not search."""
        self.network, self._simulations = network, simulations
        self.plays_by: GameNetwork = network  # `network` is the one that is trained
        self._exploration = exploration or Exploration()
        self._trees: SearchTrees | None = None
        self._capacity = 0

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        states = np.rint(observation.cpu().numpy()).astype(np.int16)
        moves = self.moves(states).astype(np.float32)
        return torch.from_numpy(moves).unsqueeze(-1).to(observation.device)

    def moves(self, states: NDArray[np.int16]) -> NDArray[np.int64]:
        """Returns the move [N] for each state [N, S]; GameError if the game of one is over."""
        network = self.plays_by
        game = network.game
        is_over, _ = game.terminal(states)
        if is_over.any():
            raise GameError(
                game.name, states[int(is_over.argmax())].tolist(),
                "the game is over, and nobody moves. Ask for moves of games that go on.",
            )  # fmt: skip
        if not self._simulations:
            preferences, _ = network.evaluate(game.observe(states))
            return np.asarray(np.where(game.legal(states), preferences, -np.inf).argmax(1))
        if self._trees is None or self._capacity < len(states):
            self._capacity = len(states)
            self._trees = SearchTrees(game, self._capacity, self._simulations, self._exploration)
        return np.asarray(self._trees.search(states, network.evaluate).argmax(1))
