"""Policies without noise on their actions, and many perturbed policies of one network at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gmi_drl.placement import EvolutionConfig

from .networks import described_layers
from .policy import NoiselessPolicy
from .trunk import HiddenLayers, Trunk

Layer = tuple[str, Callable[[Tensor], Tensor] | None]  # a Linear's name, what follows it


class GreedyNetwork(nn.Module):
    """Gives the parameters [B, P] of a distribution, whose mode is the action.

    Outputs begin at 0 for all observations, so that no action is preferred.
    """

    def __init__(
        self,
        trunk: HiddenLayers,
        distribution: Any,
        settings: EvolutionConfig,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.trunk, self.distribution = trunk, distribution
        self.head = nn.Linear(trunk.features, distribution.parameters)
        trunk.initialise(generator)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._layers = described_layers(settings)

    def describe(self) -> dict[str, Any]:
        """Returns what its parameters do not say: see ActorCritic.describe."""
        return self._layers

    def forward(self, observation: Tensor) -> Tensor:
        return self.head(self.trunk(observation))  # type: ignore[no-any-return]


class GreedyPolicy(NoiselessPolicy):
    """Acts by the mode of a `GreedyNetwork`'s distribution, in training as well."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.action_columns: int = network.distribution.action_columns

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        rows: Tensor = self.network.distribution.mode(self.network(observation))
        return rows


class PerturbedPolicies:
    """N policies of one network with parameters of their own; each sees one observation.

    Dense layers give the same bits for any N and any place among the policies. For one policy alone
    torch takes another kind of product, so that it is computed twice.
    """

    def __init__(self, network: GreedyNetwork) -> None:
        self._network = network
        named = sorted(network.named_parameters())
        self._shapes: Final = {name: parameter.shape for name, parameter in named}
        self._sizes = [parameter.numel() for _, parameter in named]
        self._layers = _dense_layers(network)
        self._views: dict[str, Tensor] = {}
        self._is_single = False

    def load(self, parameters: Tensor) -> None:
        """Takes the policies' `parameters` [N, n], end to end in the order of their names."""
        self._is_single = len(parameters) == 1
        if self._is_single:
            parameters = parameters.expand(2, -1)
        parts = torch.split(parameters, self._sizes, 1)
        self._views = {
            name: part.reshape(len(parameters), *shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }
        if self._layers is not None:  # as columns, which are multiplied at once
            for name, _ in self._layers:
                self._views[f"{name}.bias"] = self._views[f"{name}.bias"].unsqueeze(-1)

    def act(self, observation: Tensor) -> Tensor:
        """Returns the action rows [N, A] of each policy for its normalised observation [N, D]."""
        if self._is_single:
            observation = observation.expand(2, -1)
        if self._layers is None:
            out = vmap(self._forward_single)(self._views, observation)
        else:
            out, views = observation.unsqueeze(-1), self._views
            for name, activation in self._layers:
                out = torch.baddbmm(views[f"{name}.bias"], views[f"{name}.weight"], out)
                if activation is not None:
                    out = activation(out)
            out = out.squeeze(-1)
        rows: Tensor = self._network.distribution.mode(out)
        return rows[:1] if self._is_single else rows

    def _forward_single(self, parameters: dict[str, Tensor], observation: Tensor) -> Tensor:
        out: Tensor = functional_call(self._network, parameters, observation.unsqueeze(0))
        return out[0]


def _dense_layers(network: GreedyNetwork) -> list[Layer] | None:
    """Returns the layers of a dense network; None where it has other layers."""
    layers: list[Layer] = []
    if type(network.trunk) is not Trunk:
        return None
    for name, layer in network.trunk.named_children():
        if isinstance(layer, nn.Linear):
            layers.append((f"trunk.{name}", None))
        elif isinstance(layer, nn.LayerNorm):
            return None
        else:
            layers[-1] = (layers[-1][0], layer)
    return [*layers, ("head", None)]
