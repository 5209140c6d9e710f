"""Learns several policies at once, each by an algorithm of its own: independent learners.

A policy learns from the rows of its agents. Gradients of all policies are reduced together, and
each policy clips and takes its own steps. A GMI is weighted by how many rows of the policy it has:
k GMIs take the step of one GMI on all their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gmi_drl.roles.envs.agents import AgentGroup
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.policies.distributions import slices_of
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.policy_map import NormalizerMap, PolicyMap
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses, checked


def by_policy(groups: Sequence[AgentGroup], algorithms: Mapping[str, Algorithm]) -> ByPolicy:
    """Returns the algorithm of several policies, made of the algorithms of each.

    RoleError for algorithms that take no rows.
    """
    kind = type(next(iter(algorithms.values())))
    if kind.whole_segments:
        raise RoleError(
            f"{kind.__name__} learns from whole segments, and {len(algorithms)} policies from the "
            "rows of agents who come and go. Leave whole_segments out and have `losses` take "
            "rows, as PPO's does; or give all agents one policy."
        )
    policy = PolicyMap(groups, {name: algorithm.policy for name, algorithm in algorithms.items()})
    by_name = {name: algorithm.normalizers for name, algorithm in algorithms.items()}
    observations = {name: part.observations for name, part in by_name.items() if part.observations}
    values = {name: part.values for name, part in by_name.items() if part.values}
    normalizers = Normalizers(
        NormalizerMap(groups, observations) if observations else None,
        NormalizerMap(groups, values) if values else None,
    )
    return ByPolicy(policy, normalizers, algorithms)


class ByPolicy(Algorithm):
    """Has an algorithm of rows for each policy of a `PolicyMap`; all are of one kind."""

    policy: PolicyMap

    def __init__(
        self, policy: PolicyMap, normalizers: Normalizers, algorithms: Mapping[str, Algorithm]
    ) -> None:
        """`algorithms`: by policy, in the order of these."""
        first = next(iter(algorithms.values()))
        super().__init__(first.settings, policy, normalizers)
        self.algorithms = dict(algorithms)
        self._stat_names = first.stats
        self.stats = (*first.stats, *(f"{p}/{name}" for p in algorithms for name in first.stats))
        self.filled, self.bootstrap = first.filled, first.bootstrap  # type: ignore[misc]
        self.recorded, self.capturable = first.recorded, first.capturable  # type: ignore[misc]
        self.changes_parameters = first.changes_parameters  # type: ignore[misc]
        counts = [algorithm.num_batch_moments for algorithm in algorithms.values()]
        # The moments of each policy, and then the number of its rows with an agent present.
        self.num_batch_moments = sum(counts) + len(algorithms)  # type: ignore[misc]
        self._num_own = sum(counts)
        self._places = slices_of(counts)
        # The parameter groups of each policy; one that names none is a group.
        self._rates = {
            name: {f"{name}.{part}": rate for part, rate in algorithm.learning_rates.items()}
            or {name: first.settings.learning_rate}
            for name, algorithm in algorithms.items()
        }
        device = next(policy.network.parameters()).device
        # The weight of this GMI's loss of each policy in the mean over GMIs.
        self._weights = torch.ones(len(algorithms), device=device)
        self._idle = torch.zeros(len(algorithms), device=device)

    @property
    def learning_rates(self) -> Mapping[str, float]:
        return {group: rate for own in self._rates.values() for group, rate in own.items()}

    @property
    def idle(self) -> Mapping[str, Tensor]:
        """Tells for the groups of each policy whether none of its agents is present in any GMI."""
        policies = zip(self._rates.values(), self._idle.unbind(), strict=True)
        return {group: idle for own, idle in policies for group in own}

    def losses(self, batch: Batch) -> Losses:
        assert batch.rows is not None
        assert batch.row_layout is not None
        layouts = self.policy.layouts(batch.row_layout)
        total: Tensor | None = None
        stats: dict[str, Tensor] = {}
        groups: list[str] = []
        takes_all = True
        places = self.policy.rows(len(batch.rows))
        parts = zip(self.algorithms.items(), places, layouts, self._weights, strict=True)
        for (name, algorithm), rows, layout, weight in parts:
            packed_rows = batch.rows[rows]
            constants = self.policy.constants_of(name, batch)
            part = Batch(layout.views(packed_rows), {}, constants, packed_rows, layout)
            losses = checked(algorithm, algorithm.losses(part))
            total = losses.total * weight if total is None else total + losses.total * weight
            stats |= {f"{name}/{key}": losses.stats[key] * weight for key in self._stat_names}
            if losses.groups is None:
                groups += self._rates[name]
            else:
                takes_all = False
                groups += [f"{name}.{part}" for part in losses.groups]
        assert total is not None
        num_learning = (1.0 - self._idle).sum().clamp(min=1.0)
        for key in self._stat_names:
            values = torch.stack([stats[f"{name}/{key}"] for name in self.algorithms])
            stats[key] = values.sum() / num_learning
        return Losses(total, stats, groups=None if takes_all else tuple(groups))

    def measure(self, batch: Batch, out: Tensor) -> None:
        for algorithm, part, place in self._each(batch):
            algorithm.measure(part, out[place])
        out[self._num_own :] = self._counts(batch)

    def learn_batch_moments(self, moments: Tensor) -> None:
        for algorithm, place in zip(self.algorithms.values(), self._places, strict=True):
            algorithm.learn_batch_moments(moments[:, place])

    def postprocess(self, batch: Batch, moments: Tensor) -> None:
        for algorithm, part, place in self._each(batch):
            algorithm.postprocess(part, moments[:, place])
        counts = moments[:, self._num_own :]
        totals = counts.sum(0)
        num_gmis = (counts > 0).any(1).sum()  # a GMI that is left out has no rows
        self._weights.copy_(self._counts(batch) * num_gmis / totals.clamp(min=1.0))
        self._idle.copy_(totals == 0)

    def changed(self, batch: Batch) -> list[Tensor]:
        """Returns the tensors that the algorithms change; parts of the batch are views of it."""
        return [
            tensor for algorithm, part, _ in self._each(batch) for tensor in algorithm.changed(part)
        ]

    def explore_as(self, numbers: range, total: int) -> None:
        """Gives each algorithm the numbers of its rows: those of its agents, [A, E] in a GMI."""
        groups = self.policy.groups
        all_agents = sum(len(group.agents) for group in groups)
        for group, algorithm in zip(groups, self.algorithms.values(), strict=True):
            first, end, count = (
                number * len(group.agents) // all_agents
                for number in (numbers.start, numbers.stop, total)
            )
            algorithm.explore_as(range(first, end), count)

    def before_sampling(self, steps: int) -> None:
        for algorithm in self.algorithms.values():
            algorithm.before_sampling(steps)

    def after_step(self, updates: int) -> None:
        for algorithm in self.algorithms.values():
            algorithm.after_step(updates)

    def state_dict(self) -> dict[str, Any]:
        states = {name: algorithm.state_dict() for name, algorithm in self.algorithms.items()}
        return states if any(states.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, algorithm in self.algorithms.items():
            algorithm.load_state_dict(state[name])

    def _counts(self, batch: Batch) -> Tensor:
        """Returns for each policy the number of rows of a batch with an agent present."""
        parts = self.policy.parts(batch)
        return torch.stack([part["present"].sum() for part in parts])

    def _each(self, batch: Batch) -> list[tuple[Algorithm, Batch, slice]]:
        parts = self.policy.parts(batch)
        return list(zip(self.algorithms.values(), parts, self._places, strict=True))
