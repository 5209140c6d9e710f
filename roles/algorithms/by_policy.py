"""Learns several policies at once, each by an algorithm of its own: independent learners.

What a policy learns from is the rows of its agents. Their gradients are reduced together, and each
policy takes, clips and remembers its own steps. A GMI counts by how many rows of the policy it has:
k GMIs take the step of one GMI on all their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gmi_drl.roles.envs.agents import AgentGroup
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.policy_map import NormalizerMap, PolicyMap
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses


def by_policy(groups: Sequence[AgentGroup], algorithms: Mapping[str, Algorithm]) -> ByPolicy:
    """Returns the algorithm of several policies, of those that each of them has.

    RoleError for algorithms that take no rows.
    """
    kind = type(next(iter(algorithms.values())))
    if kind.whole_segments:
        raise RoleError(
            f"{kind.__name__} learns from whole segments, and {len(algorithms)} policies from the "
            "rows of agents who come and go. Leave whole_segments out and have `losses` take "
            "rows, as PPO's does; or give all agents one policy."
        )
    policy = PolicyMap(groups, {name: its.policy for name, its in algorithms.items()})
    observations = {n: s for n, its in algorithms.items() if (s := its.normalizers.observations)}
    values = {n: s for n, its in algorithms.items() if (s := its.normalizers.values)}
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
        self._shared = first.stats
        self.stats = (*first.stats, *(f"{p}/{name}" for p in algorithms for name in first.stats))
        self.filled, self.bootstrap = first.filled, first.bootstrap  # type: ignore[misc]
        self.recorded, self.capturable = first.recorded, first.capturable  # type: ignore[misc]
        self.changes_parameters = first.changes_parameters  # type: ignore[misc]
        own = [its.num_batch_moments for its in algorithms.values()]
        # Those of each policy, and then the rows of each in which somebody is there.
        self.num_batch_moments = sum(own) + len(algorithms)  # type: ignore[misc]
        self._moments = own
        device = next(policy.network.parameters()).device
        # What this GMI's loss of each policy weighs, in the mean over GMIs.
        self._weights = torch.ones(len(algorithms), device=device)
        self._idle = torch.zeros(len(algorithms), device=device)

    @property
    def learning_rates(self) -> Mapping[str, float]:
        return dict.fromkeys(self.algorithms, self.settings.learning_rate)

    @property
    def idle(self) -> Mapping[str, Tensor]:
        """Tells of each policy whether its agents are nowhere, in no GMI."""
        return dict(zip(self.algorithms, self._idle.unbind(), strict=True))

    def losses(self, batch: Batch) -> Losses:
        assert batch.rows is not None
        assert batch.row_layout is not None
        layouts = self.policy.layouts(batch.row_layout)
        total: Tensor | None = None
        stats: dict[str, Tensor] = {}
        places = self.policy.rows(len(batch.rows))
        each = zip(self.algorithms.items(), places, layouts, self._weights, strict=True)
        for (name, algorithm), rows, layout, weight in each:
            packed = batch.rows[rows]
            constants = self.policy.constants_of(name, batch)
            part = Batch(layout.views(packed), {}, constants, packed, layout)
            losses = algorithm.losses(part)
            total = losses.total * weight if total is None else total + losses.total * weight
            stats |= {f"{name}/{key}": losses.stats[key] * weight for key in self._shared}
        assert total is not None
        learning = (1.0 - self._idle).sum().clamp(min=1.0)
        for key in self._shared:
            its = torch.stack([stats[f"{name}/{key}"] for name in self.algorithms])
            stats[key] = its.sum() / learning
        return Losses(total, stats)

    def measure(self, batch: Batch, out: Tensor) -> None:
        for algorithm, part, place in self._each(batch):
            algorithm.measure(part, out[place])
        out[sum(self._moments) :] = self._counts(batch)

    def learn_batch_moments(self, moments: Tensor) -> None:
        for algorithm, place in zip(self.algorithms.values(), self._places(), strict=True):
            algorithm.learn_batch_moments(moments[:, place])

    def postprocess(self, batch: Batch, moments: Tensor) -> None:
        for algorithm, part, place in self._each(batch):
            algorithm.postprocess(part, moments[:, place])
        counts = moments[:, sum(self._moments) :]
        of_all = counts.sum(0)
        gmis = (counts > 0).any(1).sum()  # one that is left out has none
        self._weights.copy_(self._counts(batch) * gmis / of_all.clamp(min=1.0))
        self._idle.copy_(of_all == 0)

    def changed(self, batch: Batch) -> list[Tensor]:
        """Returns what the algorithms change; what a part of the batch has is a view of it."""
        return [one for its, part, _ in self._each(batch) for one in its.changed(part)]

    def before_sampling(self, steps: int) -> None:
        for algorithm in self.algorithms.values():
            algorithm.before_sampling(steps)

    def after_step(self, updates: int) -> None:
        for algorithm in self.algorithms.values():
            algorithm.after_step(updates)

    def state_dict(self) -> dict[str, Any]:
        states = {name: its.state_dict() for name, its in self.algorithms.items()}
        return states if any(states.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, its in self.algorithms.items():
            its.load_state_dict(state[name])

    def _counts(self, batch: Batch) -> Tensor:
        """Returns in how many rows of a batch somebody is there, for each policy."""
        parts = self.policy.parts(batch)
        return torch.stack([part["present"].sum() for part in parts])

    def _places(self) -> Sequence[slice]:
        places, begin = [], 0
        for count in self._moments:
            places.append(slice(begin, begin + count))
            begin += count
        return places

    def _each(self, batch: Batch) -> list[tuple[Algorithm, Batch, slice]]:
        parts = self.policy.parts(batch)
        return list(zip(self.algorithms.values(), parts, self._places(), strict=True))
