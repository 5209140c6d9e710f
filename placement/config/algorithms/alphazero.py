"""Defines the settings of AlphaZero, which learns games by search and self-play."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from gmi_drl.placement.config.section import Int, as_tuple
from gmi_drl.placement.faults import Fault, counted

from .common import AlgorithmConfig, Horizon

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config

_Size = Annotated[Int, Field(ge=1, le=1_000_000)]


class AlphaZeroConfig(AlgorithmConfig):
    """AlphaZero (Silver et al., 2018), with the gate of AlphaGo Zero (2017).

    See [search](alphazero.md).
    """

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.alphazero:AlphaZero"
    optimizers: ClassVar[tuple[str, ...]] = ("tree_search",)
    adam_eps: ClassVar[float] = 1e-8

    name: Literal["alphazero"] = "alphazero"
    network: Annotated[tuple[_Size, ...], BeforeValidator(as_tuple)] = Field(
        default=(64,), min_length=1,
        description="Dense hidden layers, behind the residual blocks if there are any.",
    )  # fmt: skip
    blocks: Int = Field(default=3, ge=0, le=100)
    """Residual blocks of two 3x3 convolutions over the board; 0: dense layers alone."""
    channels: Int = Field(default=32, ge=1, le=4096)
    """Channels of these convolutions."""
    activation: Literal["elu", "tanh", "relu"] = "relu"
    horizon: Horizon = Field(default=1, ge=1, le=1)
    """1: games are played whole, whatever their length."""
    gamma: float = Field(default=1.0, ge=1, le=1)
    """1: games count by how they end."""
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    schedule: Literal["constant", "linear"] = "constant"
    """The learning rate; `linear`: down to 0 at `total_steps`; `constant`."""
    max_grad_norm: float | None = Field(default=None, ge=0)
    reward_scale: float = Field(default=1.0, ge=1, le=1)
    """1: games are won, drawn or lost."""
    normalize_observation: Literal[False] = False
    """`false`: networks see boards as they are."""
    bootstrap_time_limit: Literal[False] = False
    """`false`: games are whole."""
    games: Int = Field(default=128, ge=1, le=1_000_000)
    """Games of self-play in a round, by all GMIs together; `env.num_env` of each GMI are played at
    once."""
    simulations: Int = Field(default=64, ge=2, le=100_000)
    """Leaves that a search looks at for each move."""
    play_simulations: Int = Field(default=64, ge=0, le=100_000)
    """Leaves for each move after training, and in evaluations; 0: the network acts alone."""
    c_init: float = Field(default=1.25, ge=0)
    """PUCT's constant: how much priors count."""
    c_base: float = Field(default=19652.0, gt=0)
    """Visits after which that has grown by the logarithm of 2."""
    dirichlet_alpha: float = Field(default=1.0, gt=0)
    """Concentration of the noise on the priors of roots: about 10 over the number of moves."""
    dirichlet_weight: float = Field(default=0.25, ge=0, le=1)
    """The share of that noise."""
    temperature_moves: Int = Field(default=8, ge=0)
    """Moves at the beginning of a game that are drawn in proportion to visits; later ones are those
    that were visited most."""
    replay_capacity: Int = Field(default=100_000, ge=1)
    """The newest positions, which every GMI keeps."""
    batch_size: Int = Field(default=256, ge=1)
    """Positions of a minibatch, of all GMIs together."""
    updates_per_row: float = Field(default=0.02, gt=0)
    """Updates for each further position: this times `batch_size` is how often each is used."""
    value_coef: float = Field(default=1.0, ge=0)
    """Weight of the value loss."""
    weight_decay: float = Field(default=1e-4, ge=0)
    """Half of this times the squared parameters is added to the loss."""
    gate_every: Int = Field(default=5, ge=1)
    """Rounds between two matches against the best network so far."""
    gate_games: Int = Field(default=40, ge=0, le=1_000_000)
    """Games of a match, in pairs that begin alike with sides changed. 0: there is none, and games
    are always played by the newest network."""
    gate_share: float = Field(default=0.55, ge=0, le=1)
    """The candidate becomes the best network, which plays, when it wins this share of the games of
    a match that somebody wins."""

    @property
    def anneals(self) -> bool:
        return self.schedule == "linear"

    @property
    def kept_steps(self) -> int:
        return self.replay_capacity

    def minibatch_size(self, samples: int) -> int:
        return self.batch_size

    def head_layers(self, features: int, parameters: int) -> list[tuple[int, int]]:
        return [(features, parameters + 1)]

    def update_text(self, samples: int, trainers: int, where: str) -> str:
        return f"{self.games:,} games of self-play, by all GMIs"

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields faults unless each GMI has games to play, and a share of a minibatch."""
        yield from super().faults(config, agents, trainers)
        if self.layer_norm:
            yield Fault(
                "algorithm.layer_norm", True, "networks of games have none", "Leave it out."
            )
        if config.env.wrappers:
            yield Fault(
                "env.wrappers", list(config.env.wrappers),
                "a search is shown the states of a game as they are", "Leave them out.",
            )  # fmt: skip
        if self.gate_games % 2:
            yield Fault(
                "algorithm.gate_games", self.gate_games, "must be even: games come in pairs",
                f"Use {self.gate_games + 1}.",
            )  # fmt: skip
        if not trainers:
            return
        if self.games < trainers:
            yield Fault(
                "algorithm.games", self.games,
                f"must be at least {trainers}, one for each GMI", "Raise it, or use fewer GMIs.",
            )  # fmt: skip
            return
        if self.batch_size % trainers:
            yield Fault(
                "algorithm.batch_size", self.batch_size,
                f"must be divided by {counted(trainers, 'GMI')}, each of which has a share",
                f"Use {-(-self.batch_size // trainers) * trainers}.",
            )  # fmt: skip
        games_per_gmi, num_env = -(-self.games // trainers), config.env.num_env
        if num_env > games_per_gmi:
            yield Fault(
                "env.num_env", num_env,
                f"games={self.games} gives each of {counted(trainers, 'GMI')} "
                f"{counted(games_per_gmi, 'game')} to play",
                f"Use {games_per_gmi} or fewer, or raise games to {num_env * trainers}.",
            )  # fmt: skip
