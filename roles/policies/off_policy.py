"""Policies that are trained by critics: an actor, what values its actions, and how it explores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import softplus

from gmi_drl.placement import OffPolicyConfig, hidden_sizes, is_own_network
from gmi_drl.roles.envs.protocol import VecEnv

from .actor_critic import observation_width
from .convolutions import is_convolutional
from .networks import trunk_of
from .trunk import HiddenLayers, Trunk

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch

_LOG_STD: Final = (-20.0, 2.0)  # bounds of the logarithm of a deviation, as SAC's authors have them
_JOINED: Final = 256  # units that see the features of an image and an action together
_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)


class ActorNetwork(nn.Module):
    """Puts out `numbers` [B, numbers] for normalised observations [B, D]."""

    def __init__(
        self, trunk: HiddenLayers, numbers: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(trunk.features, numbers)
        _initialise(self.trunk, self.head, generator, gain=0.01)

    def forward(self, observation: Tensor) -> Tensor:
        return self.head(self.trunk(observation))  # type: ignore[no-any-return]


class Critic(nn.Module):
    """Values an action, [B, 1]; or where no action is given all of a Discrete space, [B, n]."""

    def __init__(
        self,
        env: VecEnv,
        settings: OffPolicyConfig,
        generator: torch.Generator | None,
        action_columns: int,
        numbers: int = 1,
    ) -> None:
        """`action_columns`: the numbers of an action that it takes; 0: it takes none."""
        super().__init__()
        name, precision = settings.network, settings.precision
        self._joins_late = is_own_network(name) or is_convolutional(name)
        self.trunk: HiddenLayers
        self.joined: HiddenLayers | None = None
        if self._joins_late or not action_columns:
            self.trunk = trunk_of(settings, env, generator)
            if action_columns:
                width = self.trunk.features + action_columns
                self.joined = Trunk(width, [_JOINED], settings.activation, precision)
                self.joined.initialise(generator)
        else:
            width = observation_width(env.observation_space) + action_columns
            self.trunk = Trunk(
                width, hidden_sizes(name), settings.activation, precision,
                layer_norm=settings.layer_norm,
            )  # fmt: skip
        features = self.trunk.features if self.joined is None else self.joined.features
        self.head = nn.Linear(features, numbers)
        _initialise(self.trunk, self.head, generator, gain=1.0)

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        if action is None:
            return self.head(self.trunk(observation))  # type: ignore[no-any-return]
        if self.joined is None:
            return self.head(self.trunk(torch.cat([observation, action], -1)))  # type: ignore[no-any-return]
        seen = torch.cat([self.trunk(observation), action], -1)
        return self.head(self.joined(seen))  # type: ignore[no-any-return]


@torch.no_grad()
def _initialise(
    trunk: HiddenLayers, head: nn.Linear, generator: torch.Generator | None, gain: float
) -> None:
    trunk.initialise(generator)
    nn.init.orthogonal_(head.weight, gain, generator=generator)
    head.bias.zero_()


class ActorWithCritics(nn.Module):
    """The network that is trained: `actor`, `critics`, and `log_temperature` where it is learned.

    `forward` is the actor's. Its parts are the algorithm's parameter groups.
    """

    def __init__(
        self,
        actor: ActorNetwork,
        critics: list[Critic],
        settings: OffPolicyConfig,
        learns: bool = False,
    ) -> None:
        """`learns`: the temperature, from 1 on."""
        super().__init__()
        self.actor, self.critics = actor, nn.ModuleList(critics)
        self.log_temperature = nn.Parameter(torch.zeros(1)) if learns else None
        sizes = settings.network
        self._named = str(sizes) if is_own_network(sizes) else list(hidden_sizes(sizes))
        self._activation = settings.activation

    def describe(self) -> dict[str, Any]:
        """Say what its parameters do not: see ActorCritic.describe."""
        return {"network": self._named, "activation": self._activation}

    def forward(self, observation: Tensor) -> Tensor:
        return self.actor(observation)  # type: ignore[no-any-return]

    def values(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        """Returns what each critic values an action, [critics, B]; or all of them, [.., B, n]."""
        given = torch.stack([critic(observation, action) for critic in self.critics])
        return given if action is None else given.squeeze(-1)

    @contextmanager
    def critics_fixed(self) -> Iterator[None]:
        """Lets nothing within the block differentiate by the critics' parameters.

        What is valued there is differentiated by the action.
        """
        parameters = list(self.critics.parameters())
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)


class ExploringPolicy(ABC):
    """Acts by the actor of a network with noise, or while `at_random` is 1 by noise alone."""

    state_columns = 0
    columns: Mapping[str, int] = {}
    column_groups: Mapping[str, tuple[str, str]] = {}
    row_constants: Mapping[str, Tensor] = {}

    def __init__(self, network: Any, action_columns: int, noise_columns: int) -> None:
        self.network = network
        self.action_columns, self.noise_columns = action_columns, noise_columns
        # A tensor, as acting may be captured. A known model has no parameters.
        device = next(network.parameters(), torch.empty(0)).device
        self.at_random = torch.ones((), device=device)

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        batch["noise"].normal_(generator=generator)

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        """Write and return the actions [N, A] for `step["observation"]` [N, D]."""
        noise = step["noise"]
        chosen = self.explore(self.network.actor(step["observation"]), noise)
        step["action"].copy_(torch.where(self.at_random > 0.0, self.random(noise), chosen))
        return step["action"]

    @abstractmethod
    def explore(self, out: Tensor, noise: Tensor) -> Tensor:
        """Returns actions [N, A] by what the actor puts `out`, and noise."""

    @abstractmethod
    def random(self, noise: Tensor) -> Tensor:
        """Returns actions [N, A] that are all as likely, by noise alone."""

    def finish(self, batch: Batch) -> None:  # noqa: B027
        """Nothing is made for all steps at once."""

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        """Not asked for: algorithms that are told where each step led to value that themselves."""
        raise AssertionError("values are the critics', and of actions")

    @abstractmethod
    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        """Returns the most likely action rows [N, A]."""


class DeterministicPolicy(ExploringPolicy):
    """Acts by tanh of what the actor puts out, and noise of deviation `deviation` on it."""

    def __init__(self, network: Any, action_columns: int, deviation: float) -> None:
        super().__init__(network, action_columns, action_columns)
        self._deviation = deviation

    def explore(self, out: Tensor, noise: Tensor) -> Tensor:
        return (out.tanh() + self._deviation * noise).clamp_(-1.0, 1.0)

    def random(self, noise: Tensor) -> Tensor:
        return uniform(noise)

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        action: Tensor = self.network.actor(observation)
        return action.tanh()


class SquashedNormalPolicy(ExploringPolicy):
    """Acts by tanh of a normal distribution, whose means and log deviations the actor puts out."""

    def __init__(self, network: Any, action_columns: int) -> None:
        super().__init__(network, action_columns, action_columns)

    def explore(self, out: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = _split(out)
        return torch.addcmul(mean, log_std.exp(), noise).tanh()

    def random(self, noise: Tensor) -> Tensor:
        return uniform(noise)

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        return _split(self.network.actor(observation))[0].tanh()

    @staticmethod
    def sample(out: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns actions [B, A], differentiable by `out` [B, 2 A], and their log-probability [B].

        That of tanh is corrected for exactly: log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
        """
        mean, log_std = _split(out)
        before = torch.addcmul(mean, log_std.exp(), noise)
        of_normal = -0.5 * noise.square() - log_std - _HALF_LOG_2PI
        squashing = 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))
        return before.tanh(), (of_normal - squashing).sum(-1)


class SampledChoicePolicy(ExploringPolicy):
    """Draws one of n choices, whose logits [B, n] the actor puts out."""

    def __init__(self, network: Any, choices: int) -> None:
        super().__init__(network, 1, choices)

    def explore(self, out: Tensor, noise: Tensor) -> Tensor:
        # Gumbel's trick: the largest of logits with this noise is a draw by their softmax.
        share = ((uniform(noise) + 1.0) / 2.0).clamp_(1e-6, 1.0 - 1e-6)
        return (out - (-share.log()).log()).argmax(-1, keepdim=True).float()

    def random(self, noise: Tensor) -> Tensor:
        return noise.argmax(-1, keepdim=True).float()

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        logits: Tensor = self.network.actor(observation)
        return logits.argmax(-1, keepdim=True).float()


def uniform(noise: Tensor) -> Tensor:
    """Returns numbers that are uniform in [-1, 1] where `noise` is standard normal."""
    return torch.erf(noise / math.sqrt(2.0))


def _split(out: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = out.chunk(2, -1)
    return mean, log_std.clamp(*_LOG_STD)


def bounded_width(space: spaces.Space[Any]) -> int | None:
    """Returns the numbers of an action of a Box with bounds; None for any other space."""
    if isinstance(space, spaces.Box) and space.is_bounded():
        return math.prod(space.shape)
    return None
