"""The actor-critic policy: its network, and how it acts and values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from gymnasium import spaces
from torch import Tensor, nn

from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.spaces import (
    action_fault,
    flat_space,
    is_bounded,
    leaves,
    observation_fault,
)

from .distributions import Bernoulli, Categorical, Distribution, Joint, Normal
from .trunk import HiddenLayers, OwnTrunk, Precision, SeparateTrunks, Trunk, orthogonal_

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch


def distribution_for(space: spaces.Space[Any]) -> Distribution:
    """Returns the action distribution of a space; EnvSpecError for one that no policy supports."""
    if fault := action_fault(space):
        raise EnvSpecError(fault)
    parts: list[Normal | Categorical | Bernoulli] = []
    for _, leaf in leaves(space):
        if isinstance(leaf, spaces.Box):
            parts.append(Normal(math.prod(leaf.shape), bounded=is_bounded(leaf)))
        elif isinstance(leaf, spaces.MultiBinary):
            parts.append(Bernoulli(math.prod(leaf.shape)))
        else:
            choices = [leaf.n] if isinstance(leaf, spaces.Discrete) else leaf.nvec.ravel()
            parts += [Categorical(int(number)) for number in choices]
    return parts[0] if len(parts) == 1 else Joint(parts)


def observation_width(space: spaces.Space[Any]) -> int:
    """Returns the width of an observation as a vector; EnvSpecError if it cannot be one."""
    if fault := observation_fault(space):
        raise EnvSpecError(fault)
    return flat_space(space).shape[0]


class ActorCritic(nn.Module):
    """The network of a policy and its value function: a trunk, and one head for both.

    `forward` takes normalised observations [B, obs_dim] and returns the head's raw output
    [B, P + 1]: P distribution parameters (means, or logits), then the normalised value. One
    head for both costs one matrix product instead of two. With precision bf16 the head stays in
    float32, as its outputs are compared with earlier ones. tf32 is fp32 here; see `HiddenLayers`.
    """

    def __init__(
        self,
        obs_dim: int,
        distribution: Distribution,
        hidden: Sequence[int],
        activation: str = "elu",
        init_log_std: float = 0.0,
        generator: torch.Generator | None = None,
        precision: Precision = "fp32",
        trunk: HiddenLayers | None = None,
        features: int | None = None,
    ) -> None:
        """`trunk` replaces hidden layers of the sizes `hidden`; for two trunks see SplitHead.

        `features`: the head's inputs, where a subclass puts something between trunk and head.
        """
        super().__init__()
        self.distribution = distribution
        self._hidden, self._activation = list(hidden), activation
        self.trunk = trunk or Trunk(obs_dim, hidden, activation, precision)
        parameters = distribution.parameters
        self.head: Head | SplitHead
        if isinstance(self.trunk, SeparateTrunks):
            self.head = SplitHead(self.trunk, parameters)
        else:
            self.head = Head(features or self.trunk.features, parameters + 1)
        self.log_std = nn.Parameter(torch.full((distribution.deviations,), init_log_std))
        self.trunk.initialise(generator)
        self.head.initialise(generator)

    def describe(self) -> dict[str, Any]:
        """Returns what its parameters' names and shapes do not say, as plain values.

        A checkpoint keeps it and is refused where it differs. Add what is your own to it.
        """
        return {
            "distribution": named(self.distribution),
            "network": self._hidden,
            "activation": self._activation,
            **({"trunk": self.trunk.name} if isinstance(self.trunk, OwnTrunk) else {}),
        }

    def forward(self, observation: Tensor) -> Tensor:
        return self.head(self.trunk(observation))  # type: ignore[no-any-return]

    @torch.no_grad()
    def map_value(self, scale: Tensor, shift: Tensor) -> None:
        """Changes the head so that each value becomes `scale` * value + `shift`."""
        weight, bias = self.head.of_value()
        weight.mul_(scale)
        bias.mul_(scale).add_(shift)


# Orthogonal with gain sqrt(2) in the trunk, 0.01 for the actions (the first policy is nearly the
# same in every state), 1 for the value: the settings compared in "What matters in on-policy RL"
# (Andrychowicz et al., 2021).
GAIN_OF_ACTIONS: Final = 0.01


class Head(nn.Linear):
    """The last layer: rows for the distribution's parameters, then one for the value."""

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None) -> None:
        """Make weights orthogonal, and biases 0."""
        nn.init.orthogonal_(self.weight[:-1], GAIN_OF_ACTIONS, generator=generator)
        nn.init.orthogonal_(self.weight[-1:], 1.0, generator=generator)
        self.bias.zero_()

    def of_value(self) -> tuple[Tensor, Tensor]:
        """Returns the value's weights [F] and bias [1], as views."""
        return self.weight[-1], self.bias[-1:]


class SplitHead(nn.Module):
    """A last layer for each of two trunks, whose features come side by side; outputs as `Head`.

    The value's loss does not reach the policy's trunk, nor the policy's that of the value.
    """

    def __init__(self, trunks: SeparateTrunks, numbers: int) -> None:
        """`numbers`: how many parameters the distribution has."""
        super().__init__()
        self._widths = [trunks.policy.features, trunks.value.features]
        self.policy, self.value = (
            nn.Linear(width, count) for width, count in zip(self._widths, (numbers, 1), strict=True)
        )

    def initialise(self, generator: torch.Generator | None) -> None:
        """Make weights orthogonal, and biases 0."""
        orthogonal_(self.policy, GAIN_OF_ACTIONS, generator)
        orthogonal_(self.value, 1.0, generator)

    def forward(self, features: Tensor) -> Tensor:
        policy_features, value_features = torch.split(features, self._widths, -1)
        return torch.cat([self.policy(policy_features), self.value(value_features)], -1)

    def of_value(self) -> tuple[Tensor, Tensor]:
        """Returns the value's weights [F] and bias [1], as views."""
        return self.value.weight[0], self.value.bias


def named(distribution: Distribution) -> str:
    """Returns the name of a distribution, or the names of its parts."""
    if not isinstance(distribution, Joint):
        return type(distribution).__name__
    return ", ".join(f"{type(part).__name__} {part.parameters}" for part in distribution.parts)


class ActorCriticPolicy:
    """Acts by an actor-critic network: an `ActorCritic`, or one that a role's `make_policy` made.

    It alone knows that the network's outputs are P distribution parameters, then the value.
    """

    state_columns = 0

    def __init__(self, network: Any) -> None:
        self.network = network
        self.distribution: Distribution = network.distribution
        self.action_columns = self.distribution.action_columns
        self.noise_columns = self.distribution.noise_columns
        # The columns that acting writes in each step: their widths, 0 for a single number.
        self.columns = {"parameters": self.distribution.parameters, "value": 0, "log_prob": 0}
        self.column_groups = {"head": ("parameters", "value")}  # columns that are written at once

    @property
    def row_constants(self) -> dict[str, Tensor]:
        return {"log_std": self.network.log_std.detach()}

    def network_for(self, batch: Batch) -> Any:
        """Returns the network, to be called with the observations of a minibatch or of segments."""
        return self.network

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        shape, log_std = batch["noise"].shape[:2], batch.row_constants["log_std"]
        self.distribution.noise(shape, log_std, generator, batch["noise"])

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        step["head"].copy_(self.network(step["observation"]))
        return self.distribution.sample(step["parameters"], step["noise"], step["action"])

    def finish(self, batch: Batch) -> None:
        log_std = batch.row_constants["log_std"]
        log_prob = self.distribution.log_prob(batch["parameters"], log_std, batch["action"])
        batch["log_prob"].copy_(log_prob)

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        """The value of normalised observations [N, D], in the value normaliser's units: [N]."""
        value: Tensor = self.network(observation)[:, -1]
        return value

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        return self.distribution.mode(self.network(observation)[:, :-1])
