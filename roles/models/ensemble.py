"""An ensemble of networks that predict next observations and rewards (Chua et al., 2018).

M = networks, B = rows, O = numbers of an observation, A = of an action, K = O + 1: the change of
the observation, and the reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

_LOG_VARIANCE: Final = (-10.0, 0.5)  # of scaled targets: the initial bounds, which are learned
_BOUNDS_WEIGHT: Final = 0.01  # of the loss that draws them together, as in PETS
_LEAST_STD: Final = 1e-6  # columns that vary less are not scaled


class EnsembleModel(nn.Module):
    """Predicts normal distributions of changes and rewards, each network by itself.

    Inputs and targets are scaled once `scale_by` was called.
    """

    input_mean: Tensor  # [O + A]
    input_std: Tensor
    target_mean: Tensor  # [K]
    target_std: Tensor

    def __init__(
        self,
        observation: int,
        action: int,
        members: int,
        hidden: Sequence[int],
        generator: torch.Generator | None,
        activation: Callable[[Tensor], Tensor] = silu,
    ) -> None:
        super().__init__()
        self.observation, self.action, self.members = observation, action, members
        self._activation = activation
        self.targets = observation + 1
        widths = [observation + action, *hidden, 2 * self.targets]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(widths):
            weight = torch.empty(members, inputs, outputs)
            nn.init.trunc_normal_(weight, std=0.5 / math.sqrt(inputs), generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, outputs)))
        low, high = (torch.full((self.targets,), bound) for bound in _LOG_VARIANCE)
        self.low, self.high = nn.Parameter(low), nn.Parameter(high)
        for name, width in (("input", observation + action), ("target", self.targets)):
            self.register_buffer(f"{name}_mean", torch.zeros(width), persistent=False)
            self.register_buffer(f"{name}_std", torch.ones(width), persistent=False)

    def describe(self) -> dict[str, Any]:
        """Returns what its parameters do not say: see ActorCritic.describe."""
        name = getattr(self._activation, "__name__", type(self._activation).__name__)
        return {"model": "learned", "activation": name.lower()}

    def targets_of(self, observation: Tensor, following: Tensor, reward: Tensor) -> Tensor:
        """Returns the targets [.., B, K] of rows [.., B]."""
        return torch.cat([following - observation, reward.unsqueeze(-1)], -1)

    @torch.no_grad()
    def scale_by(self, inputs: Tensor, targets: Tensor) -> None:
        """Sets the scales to the mean and deviation of rows [B, O + A] and [B, K]."""
        for name, rows in (("input", inputs), ("target", targets)):
            std = rows.std(0, correction=0)
            getattr(self, f"{name}_mean").copy_(rows.mean(0))
            getattr(self, f"{name}_std").copy_(torch.where(std < _LEAST_STD, 1.0, std))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns means and log variances [M, B, K] of scaled targets.

        `inputs` are [M, B, O + A], or [1, B, O + A] for all networks.
        """
        features = ((inputs - self.input_mean) / self.input_std).expand(self.members, -1, -1)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            features = torch.baddbmm(bias, features, weight)
            if layer < last:
                features = self._activation(features)
        mean, log_variance = features.chunk(2, -1)
        log_variance = self.high - softplus(self.high - log_variance)
        return mean, self.low + softplus(log_variance - self.low)

    def loss(self, inputs: Tensor, targets: Tensor, beta: float) -> Tensor:
        """Returns the negative log-likelihood, without constants and halves, summed over networks.

        It is a mean over rows [M, B, ..] and targets (Chua et al., 2018; as in mbrl-lib). Each term
        is weighted by its variance to the power of `beta`, which is not differentiated (Seitzer et
        al., 2022): with 0 what is predicted badly has little weight, and may never be learned.
        """
        mean, log_variance = self(inputs)
        error = (mean - (targets - self.target_mean) / self.target_std).square()
        likelihood = error * (-log_variance).exp() + log_variance
        weighted: Tensor = likelihood * (beta * log_variance.detach()).exp()
        return weighted.mean((1, 2)).sum() + _BOUNDS_WEIGHT * (self.high.sum() - self.low.sum())

    @torch.no_grad()
    def errors(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean squared error [M] of each network in scaled targets of rows [B, ..]."""
        mean, _ = self(inputs.unsqueeze(0))
        scaled = (targets - self.target_mean) / self.target_std
        errors: Tensor = (mean - scaled).square().mean((1, 2))
        return errors

    def outcome(self, observation: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns next observations [.., O] and rewards [..] of scaled predictions [.., K]."""
        targets = predicted * self.target_std + self.target_mean
        return observation + targets[..., :-1], targets[..., -1]

    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Returns next observations [M, B, O] and rewards [M, B], by the mean of each network.

        Observations [M, B, O] may differ between networks; actions are [B, A].
        """
        actions = action.expand(self.members, -1, -1)
        mean, _ = self(torch.cat([observation, actions], -1))
        return self.outcome(observation, mean)

    @torch.no_grad()
    def sample(
        self, observation: Tensor, action: Tensor, member: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draws next observations [B, O] and rewards [B], each by the network `member` [B].

        `noise` [B, K] is standard normal.
        """
        mean, log_variance = self(torch.cat([observation, action], -1).unsqueeze(0))
        rows = torch.arange(len(observation), device=observation.device)
        mean, log_variance = mean[member, rows], log_variance[member, rows]
        return self.outcome(observation, mean + (0.5 * log_variance).exp() * noise)
