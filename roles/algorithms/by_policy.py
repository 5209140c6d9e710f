"""Learns several policies at once, each by an algorithm of its own: independent learners.

What a policy learns from is the rows of its agents. Their gradients are reduced together, and each
policy takes, clips and remembers its own steps.
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
        self.num_batch_moments = sum(own)  # type: ignore[misc]
        self._moments = own
        # Of each policy: 1 where somebody is there in a batch, and 0 where nobody is to learn from.
        device = next(policy.network.parameters()).device
        self._there = torch.ones(len(algorithms), device=device)

    @property
    def learning_rates(self) -> Mapping[str, float]:
        return dict.fromkeys(self.algorithms, self.settings.learning_rate)

    def losses(self, batch: Batch) -> Losses:
        assert batch.rows is not None
        assert batch.row_layout is not None
        layouts = self.policy.layouts(batch.row_layout)
        total: Tensor | None = None
        stats: dict[str, Tensor] = {}
        places = self.policy.rows(len(batch.rows))
        each = zip(self.algorithms.items(), places, layouts, self._there, strict=True)
        for (name, algorithm), rows, layout, there in each:
            packed = batch.rows[rows]
            constants = self.policy.constants_of(name, batch)
            part = Batch(layout.views(packed), {}, constants, packed, layout)
            losses = algorithm.losses(part)
            total = losses.total * there if total is None else total + losses.total * there
            stats |= {f"{name}/{key}": losses.stats[key] for key in self._shared}
        assert total is not None
        for key in self._shared:
            stats[key] = torch.stack([stats[f"{name}/{key}"] for name in self.algorithms]).mean()
        return Losses(total, stats)

    def measure(self, batch: Batch, out: Tensor) -> None:
        for algorithm, part, place in self._each(batch):
            algorithm.measure(part, out[place])

    def learn_batch_moments(self, moments: Tensor) -> None:
        for algorithm, place in zip(self.algorithms.values(), self._places(), strict=True):
            algorithm.learn_batch_moments(moments[:, place])

    def postprocess(self, batch: Batch, moments: Tensor) -> None:
        for number, (algorithm, part, place) in enumerate(self._each(batch)):
            algorithm.postprocess(part, moments[:, place])
            if (present := part.columns.get("present")) is not None:
                self._there[number] = present.any()

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

    def _places(self) -> Sequence[slice]:
        places, begin = [], 0
        for count in self._moments:
            places.append(slice(begin, begin + count))
            begin += count
        return places

    def _each(self, batch: Batch) -> list[tuple[Algorithm, Batch, slice]]:
        parts = self.policy.parts(batch)
        return list(zip(self.algorithms.values(), parts, self._places(), strict=True))
