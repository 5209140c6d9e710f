"""The policy graph of RLlib's paper: a network, its statistics, and the mathematics on them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.envs.protocol import Stacking
from gmi_drl.roles.policies.actor_critic import observation_width
from gmi_drl.roles.policies.flat_parameters import FlatParameters
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.frames import Observed

Weights = dict[str, Any]  # what `PolicyGraph.weights` gives: numpy arrays, which travel well


@dataclass(frozen=True)
class GraphSpec:
    """Says how a policy graph is made: the same wherever it is."""

    algorithm: type[Algorithm]
    settings: AlgorithmConfig
    observation_space: spaces.Space[Any]
    structured_space: spaces.Space[Any]  # of observations before they become vectors
    action_space: spaces.Space[Any]
    seed: int = 0  # of the first parameters
    stacking: Stacking | None = None  # of observations that are stacks of frames


class PolicyGraph:
    """A policy, its parameters as one vector, and its algorithm, on the CPU."""

    def __init__(self, spec: GraphSpec) -> None:
        kind, settings = spec.algorithm, spec.settings
        generator = torch.Generator().manual_seed(spec.seed)
        network = kind.make_network(settings, spec, generator)  # type: ignore[arg-type]
        self.width = observation_width(spec.observation_space)
        self.spec, self.policy = spec, kind.make_policy(network, settings)
        self.normalizers = Normalizers.of(settings, self.width)
        self.algorithm = kind(settings, self.policy, self.normalizers)
        self._observed = Observed.of(spec, self.width, self.algorithm)
        self.parameters = FlatParameters(network)
        kinds = {"observations": self.normalizers.observations, "values": self.normalizers.values}
        self._running = {name: running for name, running in kinds.items() if running is not None}

    @property
    def pieces_each(self) -> int:
        """Returns how many pieces each environment gives to minibatches: its steps, or 1."""
        return 1 if self.policy.state_columns else self.spec.settings.horizon

    def batch(self, num_env: int) -> Batch:
        """Returns the buffers of a horizon of `num_env` environments."""
        algorithm, bootstrap = self.algorithm, self.algorithm.bootstrap
        if "async_samples" in self.spec.settings.optimizers:
            bootstrap = (*bootstrap, "observation")  # segments have the last one of each
        return Batch.allocate(
            self.spec.settings.horizon, num_env, self._observed, self.policy, torch.device("cpu"),
            filled=algorithm.filled, recorded=algorithm.recorded, bootstrap=bootstrap,
        )  # fmt: skip

    def acting(self) -> Weights:
        """Returns what another graph of this spec needs to act alike, copied."""
        moments = {k: norm.state_dict()["moments"].numpy() for k, norm in self._running.items()}
        return {"parameters": self.parameters.data.detach().numpy().copy(), **moments}

    def weights(self) -> Weights:
        """Returns what another graph of this spec needs to be the same, copied."""
        return {**self.acting(), "algorithm": deepcopy(self.algorithm.state_dict())}

    def statistics(self) -> Weights:
        """Returns the weights without the parameters, copied."""
        return {name: value for name, value in self.weights().items() if name != "parameters"}

    @torch.no_grad()
    def set_weights(self, weights: Weights) -> None:
        """Makes this the graph that gave `weights`, or one that acts alike."""
        self.parameters.data.copy_(tensor_of(weights["parameters"]))
        for name, running in self._running.items():
            running.load_state_dict({"moments": tensor_of(weights[name])})
        if weights.get("algorithm"):
            self.algorithm.load_state_dict(weights["algorithm"])


def tensor_of(array: np.ndarray[Any, Any] | Tensor) -> Tensor:
    """Returns a copy; arrays that have travelled may be read-only."""
    return array.clone() if isinstance(array, Tensor) else torch.from_numpy(np.array(array))
