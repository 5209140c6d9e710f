"""Policies that are trained by critics: an actor, what values its actions, and how it explores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import softplus

from gmi_drl.placement import OffPolicyConfig, is_own_network
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.envs.spaces import is_bounded

from .actor_critic import observation_width
from .convolutions import is_convolutional
from .dense import DenseNetworks, dense_networks
from .networks import described_layers, trunk_of
from .policy import PlainPolicy
from .trunk import HiddenLayers, Trunk, dense_trunk, orthogonal_

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch

_LOG_STD: Final = (-20.0, 2.0)  # bounds of the logarithm of a deviation, as SAC's authors have them
_JOINED: Final = 256  # units that see the features of an image and an action together
_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)


class ActorNetwork(nn.Module):
    """Gives outputs [B, numbers] for normalised observations [B, D]."""

    def __init__(
        self, trunk: HiddenLayers, numbers: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(trunk.features, numbers)
        trunk.initialise(generator)
        orthogonal_(self.head, 0.01, generator)

    def forward(self, observation: Tensor) -> Tensor:
        return self.head(self.trunk(observation))  # type: ignore[no-any-return]


class Critic(nn.Module):
    """Values an action, [B, 1], or without one all actions of a Discrete space, [B, n]."""

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
        name = settings.network
        self.takes_action = action_columns > 0
        self.trunk: HiddenLayers
        self.joined: HiddenLayers | None = None
        if not action_columns or is_own_network(name) or is_convolutional(name):
            self.trunk = trunk_of(settings, env, generator)
            if action_columns:
                width = self.trunk.features + action_columns
                self.joined = Trunk(width, [_JOINED], settings.activation, settings.precision)
                self.joined.initialise(generator)
        else:
            self.trunk = dense_trunk(
                settings, observation_width(env.observation_space) + action_columns
            )
        features = self.trunk.features if self.joined is None else self.joined.features
        self.head = nn.Linear(features, numbers)
        self.trunk.initialise(generator)
        orthogonal_(self.head, 1.0, generator)

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        if action is None:
            return self.head(self.trunk(observation))  # type: ignore[no-any-return]
        if self.joined is None:
            return self.head(self.trunk(torch.cat([observation, action], -1)))  # type: ignore[no-any-return]
        joined = torch.cat([self.trunk(observation), action], -1)
        return self.head(self.joined(joined))  # type: ignore[no-any-return]


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
        """`learns`: whether the temperature is learned, from 1 on."""
        super().__init__()
        self.actor, self.critics = actor, nn.ModuleList(critics)
        self.log_temperature = nn.Parameter(torch.zeros(1)) if learns else None
        self._layers = described_layers(settings)

    def describe(self) -> dict[str, Any]:
        """Returns what its parameters do not say: see ActorCritic.describe."""
        return self._layers

    def forward(self, observation: Tensor) -> Tensor:
        return self.actor(observation)  # type: ignore[no-any-return]

    @cached_property
    def _dense_actor(self) -> DenseNetworks | None:
        if type(self.actor) is not ActorNetwork:
            return None
        return dense_networks([(self.actor.trunk, self.actor.head)])

    @cached_property
    def _dense_critics(self) -> DenseNetworks | None:
        if type(self).values is not ActorWithCritics.values:
            return None
        return _dense_critics(self.critics)

    @cached_property
    def _dense_critic(self) -> DenseNetworks | None:
        return _dense_critics(self.critics[:1])

    def acts(self, observation: Tensor, trained: int | None = None) -> Tensor:
        """Returns the actor's outputs for rows, of which the first `trained` have a gradient."""
        trained = len(observation) if trained is None else trained
        if self._dense_actor is not None:
            return self._dense_actor(observation, trained).squeeze(0)
        with torch.no_grad():
            untrained = self.actor(observation[trained:])
        trained_outputs: Tensor = self.actor(observation[:trained])
        return torch.cat([trained_outputs, untrained]) if len(untrained) else trained_outputs

    def values(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        """Returns each critic's value of an action, [critics, B], or of all, [critics, B, n]."""
        by_action = action is not None and action.requires_grad
        if self._dense_critics is None or by_action:
            values = torch.stack([critic(observation, action) for critic in self.critics])
        else:
            rows = observation if action is None else torch.cat([observation, action], -1)
            values = self._dense_critics(rows, len(rows))
        return values if action is None else values.squeeze(-1)

    def values_of_both(
        self, observation: Tensor, taken: Tensor, chosen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the `values` of two actions, both [critics, B].

        Those of `taken` are differentiated by the critics alone, those of `chosen` by the action.
        """
        if self._dense_critics is None:
            values = self.values(observation, taken)
            with self.critics_fixed():
                return values, self.values(observation, chosen)
        rows = torch.cat([torch.cat([observation, action], -1) for action in (taken, chosen)])
        both = self._dense_critics(rows, len(observation)).squeeze(-1)
        values, chosen_values = both.chunk(2, 1)
        return values, chosen_values

    def first_value(self, observation: Tensor, action: Tensor) -> Tensor:
        """Returns values [B] of the first critic, differentiated by the action alone."""
        if self._dense_critic is not None:
            rows = torch.cat([observation, action], -1)
            return self._dense_critic(rows, 0).squeeze(0).squeeze(-1)
        with self.critics_fixed():
            value: Tensor = self.critics[0](observation, action)
        return value.squeeze(-1)

    @contextmanager
    def critics_fixed(self) -> Iterator[None]:
        """Fixes the critics' parameters within the block.

        Values that are computed there are differentiated by the action alone.
        """
        parameters = list(self.critics.parameters())
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)


def _dense_critics(critics: Iterable[nn.Module]) -> DenseNetworks | None:
    """Returns critics side by side; None unless all are dense networks."""
    networks = []
    for critic in critics:
        if type(critic) is not Critic or critic.joined is not None:
            return None
        networks.append((critic.trunk, critic.head))
    return dense_networks(networks)


class ExploringPolicy(PlainPolicy, ABC):
    """Acts by the actor of a network with noise, or while `at_random` is 1 by noise alone."""

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
        """Returns actions [N, A] by the actor's outputs `out`, and noise."""

    def random(self, noise: Tensor) -> Tensor:
        """Returns uniform actions [N, A] by noise alone."""
        return uniform(noise)

    @abstractmethod
    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        """Returns the most likely action rows [N, A]."""


class DeterministicPolicy(ExploringPolicy):
    """Acts by tanh of the actor's outputs, and noise of deviation `deviation` on it."""

    def __init__(self, network: Any, action_columns: int, deviation: float) -> None:
        super().__init__(network, action_columns, action_columns)
        self._deviation = deviation

    def explore(self, out: Tensor, noise: Tensor) -> Tensor:
        return (out.tanh() + self._deviation * noise).clamp_(-1.0, 1.0)

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        action: Tensor = self.network.actor(observation)
        return action.tanh()


class SquashedNormalPolicy(ExploringPolicy):
    """Acts by tanh of a normal distribution, whose means and log deviations the actor gives."""

    def __init__(self, network: Any, action_columns: int) -> None:
        super().__init__(network, action_columns, action_columns)

    def explore(self, out: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = _split(out)
        return torch.addcmul(mean, log_std.exp(), noise).tanh()

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        return _split(self.network.actor(observation))[0].tanh()

    @staticmethod
    def samples(out: Tensor, noise: Tensor, trained: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns actions [B, A] and their log-probability [B] of the first rows, then of others.

        Those of the first `trained` rows can be differentiated by `out` [B, 2 A]. The correction
        for tanh is exact: log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
        """
        samples: tuple[Tensor, Tensor, Tensor, Tensor] = _Squashed.apply(  # type: ignore[no-untyped-call]
            out, noise, trained
        )
        return samples


class _Squashed(torch.autograd.Function):
    """Samples of a squashed normal distribution, in half as many operations as by autograd."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, noise: Tensor, trained: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, raw = out.chunk(2, -1)
        log_std = raw.clamp(*_LOG_STD)
        scaled = log_std.exp().mul_(noise)
        unsquashed = mean + scaled
        action = unsquashed.tanh()
        # Half of the log-probability: of the normal distribution, and of the correction for tanh.
        half = softplus(unsquashed.mul(-2.0)).add_(unsquashed)
        half = half.sub_(log_std, alpha=0.5).addcmul_(noise, noise, value=-0.25)
        constant = -noise.shape[-1] * (_HALF_LOG_2PI + 2.0 * math.log(2.0))
        log_prob = half.sum(-1).mul_(2.0).add_(constant)
        is_inside = log_std[:trained] == raw[:trained]
        ctx.save_for_backward(action[:trained], scaled[:trained], is_inside)
        ctx.set_materialize_grads(False)
        ctx.shape = out.shape
        others = action[trained:], log_prob[trained:]
        ctx.mark_non_differentiable(*others)
        return action[:trained], log_prob[:trained], *others

    @staticmethod
    def backward(
        ctx: Any, of_action: Tensor | None, of_log_prob: Tensor | None, *_: None
    ) -> tuple[Tensor, None, None]:
        action, scaled, is_inside = ctx.saved_tensors
        gradient = action.new_zeros(ctx.shape)
        mean_gradient, log_std_gradient = gradient[: len(action)].chunk(2, -1)
        if of_action is not None:
            torch.ops.aten.tanh_backward.grad_input(of_action, action, grad_input=mean_gradient)
        if of_log_prob is not None:
            # The log-probability's derivative by the number before tanh is twice its tanh.
            mean_gradient.addcmul_(of_log_prob[:, None], action, value=2.0)
        torch.mul(mean_gradient, scaled, out=log_std_gradient)
        if of_log_prob is not None:
            log_std_gradient.sub_(of_log_prob[:, None])
        log_std_gradient.mul_(is_inside)
        return gradient, None, None


class SampledChoicePolicy(ExploringPolicy):
    """Draws one of n choices, whose logits [B, n] the actor gives."""

    def __init__(self, network: Any, choices: int) -> None:
        super().__init__(network, 1, choices)

    def explore(self, out: Tensor, noise: Tensor) -> Tensor:
        # Gumbel's trick: the largest of logits with this noise is a draw by their softmax.
        quantile = ((uniform(noise) + 1.0) / 2.0).clamp_(1e-6, 1.0 - 1e-6)
        return (out - (-quantile.log()).log()).argmax(-1, keepdim=True).float()

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
    if isinstance(space, spaces.Box) and is_bounded(space):
        return math.prod(space.shape)
    return None
