"""Steps the parts of a network apart: each has its learning rate, its clipping and its moments."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.errors import CheckpointError, RoleError
from gmi_drl.roles.policies.flat_parameters import FlatParameters, ParameterGroup

from .descent import Descent, step_together


class GroupedDescent:
    """Does what `Descent` does, for groups of parameters that lie side by side in one vector."""

    def __init__(
        self,
        parameters: FlatParameters,
        settings: AlgorithmConfig,
        rates: Mapping[str, float],
        static: bool | None = None,
        idle: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`rates`: the learning rate of each group, by the name of a part of the network.

        `idle`: see `Algorithm.idle`. RoleError unless each parameter is in one of the groups, and
        their rates are more than 0.
        """
        self._rates, self._base = rates, settings.learning_rate
        if fault := parameters.group_fault(rates):
            raise RoleError(
                f"{fault}. Name a group for each part of the network in the algorithm's "
                "`learning_rates`."
            )
        for name, rate in rates.items():
            if not 0.0 < rate < math.inf:
                raise RoleError(
                    f"learning_rates[{name!r}]={rate}; must be more than 0. For parameters that "
                    "stay as they are use requires_grad_(False)."
                )
        self._groups = {name: ParameterGroup(parameters, name) for name in rates}
        self._descents = {
            name: Descent(group, settings.model_copy(update={"learning_rate": rates[name]}), static)
            for name, group in self._groups.items()
        }
        self.changed = [tensor for descent in self._descents.values() for tensor in descent.changed]
        self._idle = idle or {}
        # Groups whose rate is the same take their steps by the same kernels, if all take one.
        names_by_rate: dict[object, list[str]] = {}
        for name, rate in rates.items():
            names_by_rate.setdefault(name if name in self._idle else rate, []).append(name)
        self._batched_names = list(names_by_rate.values())
        self._parts: dict[str, Tensor] = {}
        self._gradient: Tensor | None = None  # that was cut

    @property
    def learning_rate(self) -> float:
        """The rate of a group whose rate is the settings'; other groups keep their ratio to it."""
        name = next(iter(self._rates))
        return self._descents[name].learning_rate * self._base / self._rates[name]

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        for name, descent in self._descents.items():
            descent.learning_rate = value * self._rates[name] / self._base

    def step(self, gradient: Tensor, kl: Tensor, groups: Collection[str] | None = None) -> None:
        """Takes one step of some groups (None: all) down their parts of `gradient` [n]."""
        if self._gradient is not gradient:
            self._parts = {name: gradient[group.place] for name, group in self._groups.items()}
            self._gradient = gradient
        for group_names in self._batched_names:
            names = [name for name in group_names if groups is None or name in groups]
            for name in names:
                self._descents[name].follow(self._parts[name], kl)
            if names:
                idle = self._idle.get(names[0])
                step_together([self._descents[name] for name in names], idle)

    def read_beside(self, values: Tensor) -> list[float]:
        """Returns `values` [k] and, behind them, the learning rate: one read of the device."""
        name = next(iter(self._rates))
        *read, rate = self._descents[name].read_beside(values)
        return [*read, rate * self._base / self._rates[name]]

    def state_dict(self, *, whole: bool = True) -> dict[str, Any]:
        """Returns the state of each group by name, as `Descent` does, and its share of the rate."""
        return {
            name: descent.state_dict(whole=whole) | {"share": self._share(name)}
            for name, descent in self._descents.items()
        }

    def _share(self, name: str) -> float:
        """Returns the learning rate of a group as a multiple of the settings'."""
        return self._rates[name] / self._base

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state of the same groups, whose rates may have had other ratios."""
        if state.keys() != self._descents.keys():
            raise CheckpointError(
                f"the checkpoint has parameter groups {', '.join(state)}; the algorithm has "
                f"{', '.join(self._descents)}. Use the algorithm section of the run that wrote it."
            )
        for name, descent in self._descents.items():
            descent.load_state_dict(state[name])
            descent.learning_rate *= self._share(name) / state[name]["share"]


def check_one_group(algorithm: Algorithm) -> None:
    """Raises RoleError for an algorithm with parameter groups, where parameters lie in pieces."""
    if rates := algorithm.learning_rates:
        raise RoleError(
            f"{type(algorithm).__name__} has learning_rates of {', '.join(rates)}; a parameter "
            "server cuts parameters into pieces of one rate. Leave them out, or use optimizer "
            "async_gradients; from Python rl.AsyncGradients."
        )
