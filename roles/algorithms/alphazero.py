"""AlphaZero (Silver et al., 2018): a network learns what a search with it finds.

Its priors are trained towards the shares of visits, its value towards the end of the game.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from gmi_drl.placement import AlgorithmConfig, AlphaZeroConfig
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.games.tree import Exploration
from gmi_drl.roles.policies.search import GameNetwork, SearchPolicy
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses


class AlphaZero(Algorithm):
    """Learns from positions of games; optimizer `tree_search` plays these."""

    Settings: ClassVar[type[AlgorithmConfig]] = AlphaZeroConfig
    settings: AlphaZeroConfig
    policy: SearchPolicy
    stats = ("policy_loss", "value_loss")
    bootstrap = ()
    network_class = GameNetwork
    network_fault = "a search needs preferences and a value of what a game shows"

    @classmethod
    def make_network(
        cls, settings: Any, env: VecEnv, generator: torch.Generator | None
    ) -> GameNetwork:
        """Returns a network for the game of `env`."""
        game = getattr(env, "game", None)
        if game is None:
            raise RoleError(
                f"algorithm {settings.name}: env.id is no game of two players in turn, which a "
                "search needs the rules of. Use ConnectFour-v0, TicTacToe-v0, OpenSpiel/name, or a "
                "game of yours with adapter: game."
            )
        if settings.blocks and len(game.shape) != 3:
            raise RoleError(
                f"algorithm.blocks={settings.blocks}; {game.name} shows no planes, but "
                f"{list(game.shape)} numbers. Use blocks: 0."
            )
        return GameNetwork(game, settings, generator)

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> SearchPolicy:
        exploration = Exploration(settings.c_base, settings.c_init)
        return SearchPolicy(network, settings.play_simulations, exploration)

    def losses(self, batch: Batch) -> Losses:
        """Returns cross-entropy of priors and visits, squared error of the value, and decay."""
        network = self.policy.network
        output = network(batch["observation"])
        preferences = output[:, :-1].masked_fill(~batch["legal"], float("-inf"))
        # 0 where a move is illegal, and not 0 times infinity.
        log_priors = preferences.log_softmax(-1).masked_fill(~batch["legal"], 0.0)
        policy_loss = -(batch["policy"] * log_priors).sum(-1).mean()
        value_loss = mse_loss(output[:, -1], batch["value"])
        total: Tensor = policy_loss + self.settings.value_coef * value_loss
        if decay := self.settings.weight_decay:
            squares = [parameter.square().sum() for parameter in network.parameters()]
            total = total + 0.5 * decay * torch.stack(squares).sum()
        return Losses(total, {"policy_loss": policy_loss, "value_loss": value_loss})
