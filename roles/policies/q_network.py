"""Networks that value every action, with dueling streams or noisy layers, and their policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from gmi_drl.placement import DQNConfig, hidden_sizes

from .dense import DenseNetworks, dense_networks
from .policy import PlainPolicy
from .recurrent import GRU, LSTM, advance, cell_of, unroll
from .trunk import ACTIVATIONS, HiddenLayers, dense_trunk, orthogonal_

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch


_SIGMA_0: Final = 0.5  # of factorised noise, over the root of a layer's inputs: section 3.2


class NoisyLinear(nn.Module):
    """A dense layer whose weights vary by factorised Gaussian noise (Fortunato et al., 2018).

    Row i sees weight + sigma_weight * outer(out_i, in_i), where `noise` [B, columns], or [columns]
    for all rows, is in_i and out_i behind each other, as `factorised_` makes them. No such matrix
    is made for each row: noise on the inputs and on the outputs does the same.
    """

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self._inputs, self.noise_columns = inputs, inputs + outputs
        bound = 1.0 / math.sqrt(inputs)
        weight = torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound, generator=generator))
        self.sigma_weight = nn.Parameter(torch.full((outputs, inputs), _SIGMA_0 * bound))
        self.sigma_bias = nn.Parameter(torch.full((outputs,), _SIGMA_0 * bound))

    def forward(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """Returns the outputs with noise, or without it their mean."""
        mean = linear(features, self.weight, self.bias)
        if noise is None:
            return mean
        input_noise, output_noise = noise[..., : self._inputs], noise[..., self._inputs :]
        deviation = linear(features * input_noise, self.sigma_weight, self.sigma_bias)
        return torch.addcmul(mean, output_noise, deviation)


def factorised_(noise: Tensor) -> Tensor:
    """Makes the numbers that noisy layers take out of standard normal ones, in place."""
    sign = noise.sign()
    return noise.abs_().sqrt_().mul_(sign)


class DuelingHead(nn.Module):
    """A stream for the value of the state, one for the advantages (Wang et al., 2016, eq. 9).

    Each has a hidden layer as wide as the features. The outputs are V + A - mean A, for each of the
    `outputs` of each action: [B, actions * outputs].
    """

    def __init__(
        self,
        features: int,
        actions: int,
        outputs: int,
        activation: str,
        layer: Callable[[int, int, float], nn.Module],
    ) -> None:
        """`layer` makes a layer by (inputs, outputs, gain of the initialisation)."""
        super().__init__()
        self._shape, self._activation = (actions, outputs), ACTIVATIONS[activation]()
        gain = math.sqrt(2.0)
        self.value_hidden = layer(features, features, gain)
        self.value = layer(features, outputs, 1.0)
        self.advantage_hidden = layer(features, features, gain)
        self.advantage = layer(features, actions * outputs, 1.0)
        layers = (self.value_hidden, self.value, self.advantage_hidden, self.advantage)
        self._noise_columns = [getattr(layer, "noise_columns", 0) for layer in layers]
        self.noise_columns = sum(self._noise_columns)

    def forward(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        activate = self._activation
        noises: list[list[Tensor]] = [[]] * 4
        if noise is not None:
            noises = [[part] for part in torch.split(noise, self._noise_columns, -1)]
        hidden = activate(self.value_hidden(features, *noises[0]))
        value = self.value(hidden, *noises[1])
        hidden = activate(self.advantage_hidden(features, *noises[2]))
        advantage = self.advantage(hidden, *noises[3])
        advantages = advantage.view(*features.shape[:-1], *self._shape)
        outputs: Tensor = advantages + (value - advantages.mean(-2)).unsqueeze(-2)
        return outputs.flatten(-2)


class QNetwork(nn.Module):
    """The values [B, actions] of all actions for normalised observations [B, D].

    With distributions of values these are outputs [B, actions * outputs], action by action.
    """

    def __init__(
        self,
        obs_dim: int,
        actions: int,
        settings: DQNConfig,
        generator: torch.Generator | None = None,
        trunk: HiddenLayers | None = None,
    ) -> None:
        """`trunk` replaces hidden layers of the settings' sizes."""
        super().__init__()
        self._settings = settings
        outputs = settings.outputs_per_action
        self.trunk = trunk or dense_trunk(settings, obs_dim)
        self.trunk.initialise(generator)
        features = self.trunk.features
        self.cell: LSTM | GRU | None = None  # between hidden layers and head
        self.state_columns = 0
        if settings.recurrent is not None:
            self.cell = cell_of(settings.recurrent, features, generator)
            features = settings.recurrent.size
            self.state_columns = self.cell.parts * features

        def layer(inputs: int, outputs: int, gain: float) -> nn.Module:
            if settings.noisy:
                return NoisyLinear(inputs, outputs, generator)
            dense = nn.Linear(inputs, outputs)
            orthogonal_(dense, gain, generator)
            return dense

        if settings.dueling:
            self.head: nn.Module = DuelingHead(
                features, actions, outputs, settings.activation, layer
            )
        else:
            self.head = layer(features, actions * outputs, 1.0)
        self.noise_columns: int = getattr(self.head, "noise_columns", 0)

    @cached_property
    def dense(self) -> DenseNetworks | None:
        """The network evaluated by `DenseNetworks`; None unless all layers are dense."""
        return dense_networks([(self.trunk, self.head)]) if self.cell is None else None

    def describe(self) -> dict[str, Any]:
        """Returns what its parameters do not say: see ActorCritic.describe."""
        settings = self._settings
        description: dict[str, Any] = {
            "network": list(hidden_sizes(settings.network)), "activation": settings.activation
        }  # fmt: skip
        if settings.distributional != "none":
            description["distributional"] = settings.distributional
        if settings.distributional == "c51":
            description["value_range"] = settings.value_range
        if settings.recurrent is not None:
            description["recurrent"] = f"{settings.recurrent.cell} {settings.recurrent.size}"
        return description

    def forward(self, observation: Tensor, noise: Tensor | None = None) -> Tensor:
        if self.cell is not None:  # for the first observations of episodes
            state = observation.new_zeros(len(observation), self.state_columns, dtype=torch.float32)
            return self.step(observation, state, noise)[0]
        return self.outputs(self.trunk(observation), noise)

    def outputs(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """Returns the head's outputs for features [B, F], of the cell where there is one."""
        outputs: Tensor = self.head(features) if noise is None else self.head(features, noise)
        return outputs

    def step(
        self, observation: Tensor, state: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns what `forward` does for states [B, S], and the states after."""
        assert self.cell is not None
        features, next_state = advance(self.cell, self.trunk(observation), state)
        return self.outputs(features, noise), next_state

    def unroll(self, observations: Tensor, state: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the cell's features [T, B, F] for sequences [T, B, D], and states [T, B, S].

        `state` [B, S] is before the first step; it is dropped after steps where `done` [T, B] is 1.
        States are those after each step, without a gradient.
        """
        assert self.cell is not None
        features = self.trunk(observations.flatten(0, 1))
        parts = unroll(self.cell, features, state, done)
        return parts[0], torch.cat(parts, -1).detach()


class QPolicy(PlainPolicy):
    """Acts greedily by a Q network, or, in a share `epsilon` of all steps, at random.

    With `noise_columns` it explores by the network's noise instead, drawn anew in each step of each
    environment. The greedy `mode` takes no noise.
    """

    action_columns = 1

    def __init__(
        self,
        network: Any,
        values: Callable[[Tensor], Tensor] | None = None,
        noise_columns: int = 0,
    ) -> None:
        """`values` computes action values from the network's outputs; None: they are the values."""
        self.network, self._values = network, values or _identity
        self.state_columns = getattr(network, "state_columns", 0)
        self._noisy = noise_columns > 0
        # Else the two numbers say whether to explore, and which action to take then.
        self.noise_columns = noise_columns or 2
        # A tensor, as acting may be captured.
        self.epsilon = torch.ones((), device=next(network.parameters()).device)

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        if self._noisy:
            factorised_(batch["noise"].normal_(generator=generator))
        else:
            batch["noise"].uniform_(generator=generator)

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        """Write and return the actions [N, 1] for `step["observation"]` [N, D]."""
        observation, noise, action = step["observation"], step["noise"], step["action"]
        state = step.get("state")
        if self._noisy:
            values = self._act_values(observation, state, noise)
            return action.copy_(values.argmax(-1, keepdim=True))
        values = self._act_values(observation, state)
        greedy = values.argmax(-1).float()
        random_action = (noise[:, 1] * values.shape[-1]).floor()
        action[:, 0] = torch.where(noise[:, 0] < self.epsilon, random_action, greedy)
        return action

    def _act_values(self, observation: Tensor, state: Tensor | None, *noise: Tensor) -> Tensor:
        """Returns the values of all actions; `state` [N, S] becomes the next state."""
        if not self.state_columns:
            return self._values(self.network(observation, *noise))
        assert state is not None
        outputs, next_state = self.network.step(observation, state, *noise)
        state.copy_(next_state)
        return self._values(outputs)

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        copied_state = None if state is None else state.clone()
        return self._act_values(observation, copied_state).amax(-1)

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        return self._act_values(observation, state).argmax(-1, keepdim=True).float()


def _identity(values: Tensor) -> Tensor:
    return values
