"""Acts for several agents: a policy for each group of them, and normalisers by group.

N = rows, one for each agent of each environment, those of a group side by side (`envs.agents`).
Each group's observations and actions are as wide as its own spaces, and padded to the widest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gmi_drl.roles.envs.agents import AgentGroup, rows_of
from gmi_drl.roles.errors import CheckpointError

from .distributions import slices_of
from .normalize import RunningNormalizer
from .policy import Policy

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch, RowLayout


class PolicyMap:
    """A policy made of one policy for each group of agents, which have the same columns."""

    state_columns = 0
    values_all_rows = True

    def __init__(self, groups: Sequence[AgentGroup], policies: Mapping[str, Policy]) -> None:
        """`policies`: by name, in the order of the groups; none of them remembers."""
        self.groups, self.policies = tuple(groups), dict(policies)
        self.network = _Networks({name: policy.network for name, policy in policies.items()})
        members = list(self.policies.values())
        self.action_columns = max(policy.action_columns for policy in members)
        self.noise_columns = max(policy.noise_columns for policy in members)
        self.columns = {
            name: max(policy.columns[name] for policy in members) for name in members[0].columns
        }
        self.column_groups = members[0].column_groups
        self._obs_widths = [group.observation_space.shape[0] for group in groups]

    @property
    def row_constants(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": constant
            for name, policy in self.policies.items()
            for key, constant in policy.row_constants.items()
        }

    def rows(self, num_rows: int) -> list[slice]:
        """Returns which of `num_rows` rows are those of each group."""
        return rows_of(self.groups, num_rows)

    def constants_of(self, name: str, batch: Batch) -> dict[str, Tensor]:
        """Returns the row constants of one policy that a batch has."""
        return {
            key.removeprefix(f"{name}."): constant
            for key, constant in batch.row_constants.items()
            if key.startswith(f"{name}.")
        }

    def layouts(self, whole: RowLayout) -> list[RowLayout]:
        """Returns the layout of each group's packed rows, from the layout `whole` of all rows."""
        return [
            whole.narrowed(
                {"observation": width, "action": policy.action_columns, **policy.columns}
            )
            for width, policy in zip(self._obs_widths, self.policies.values(), strict=True)
        ]

    def parts(self, batch: Batch) -> list[Batch]:
        """Returns each group's part of a batch [T, N], as views."""
        assert batch.row_layout is not None
        groups = zip(
            self.policies.items(), self.rows(batch["reward"].shape[1]),
            self.layouts(batch.row_layout), strict=True,
        )  # fmt: skip
        return [
            batch.of_group(rows, layout, policy.noise_columns, self.constants_of(name, batch))
            for (name, policy), rows, layout in groups
        ]

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        for policy, part in zip(self.policies.values(), self.parts(batch), strict=True):
            policy.noise(generator, part)

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        for rows, width, policy in self._each(len(step["action"])):
            policy.act(_GroupStep(step, rows, width, policy))
        return step["action"]

    def finish(self, batch: Batch) -> None:
        for policy, part in zip(self.policies.values(), self.parts(batch), strict=True):
            policy.finish(part)

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        return torch.cat(
            [
                policy.value(observation[rows, :width])
                for rows, width, policy in self._each(len(observation))
            ]
        )

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        action = observation.new_zeros(len(observation), self.action_columns)
        for rows, width, policy in self._each(len(observation)):
            action[rows, : policy.action_columns] = policy.mode(observation[rows, :width])
        return action

    def _each(self, num_rows: int) -> Iterator[tuple[slice, int, Policy]]:
        return zip(self.rows(num_rows), self._obs_widths, self.policies.values(), strict=True)


class _Networks(nn.ModuleDict):
    """Holds networks by the names of their policies, which may be those of its methods: train."""

    def add_module(self, name: str, module: nn.Module | None) -> None:
        assert module is not None
        self._modules[name] = module


class _GroupStep(Mapping[str, Tensor]):
    """One step as a group's policy sees it: its rows, in the width of its own columns."""

    def __init__(
        self, step: Mapping[str, Tensor], rows: slice, observed: int, policy: Policy
    ) -> None:
        self._step, self._rows = step, rows
        self._widths = {
            "observation": observed, "noise": policy.noise_columns,
            "action": policy.action_columns, **policy.columns,
        }  # fmt: skip
        self._groups = policy.column_groups

    def __getitem__(self, name: str) -> Tensor:
        column = self._step[name][self._rows]
        if name in self._groups:  # aligned to the end of the widest policy's columns
            width = sum(self._widths[part] or 1 for part in self._groups[name])
            return column[:, column.shape[1] - width :]
        width = self._widths.get(name, 0)
        if not width:
            return column
        begins_group = any(first == name for first, _ in self._groups.values())
        return column[:, column.shape[1] - width :] if begins_group else column[:, :width]

    def __iter__(self) -> Iterator[str]:
        return iter(self._step)

    def __len__(self) -> int:
        return len(self._step)


class NormalizerMap(RunningNormalizer):
    """Normalises the rows of each group by what its agents have seen; or values, of width 1."""

    def __init__(
        self, groups: Sequence[AgentGroup], normalizers: Mapping[str, RunningNormalizer]
    ) -> None:
        self.groups, self.normalizers = tuple(groups), dict(normalizers)
        self.width = max(norm.width for norm in normalizers.values())

    @property
    def num_moments(self) -> int:
        return sum(norm.num_moments for norm in self.normalizers.values())

    def measure(self, batch: Tensor, out: Tensor, present: Tensor | None = None) -> None:
        for rows, place, norm in self._each(batch.shape[1]):
            group_present = None if present is None else present[:, rows]
            norm.measure(batch[:, rows, : norm.width], out[place], group_present)

    def merged(self, everyone: Tensor) -> Tensor:
        return torch.cat([norm.merged(everyone[:, place]) for _, place, norm in self._each(0)])

    def update(self, moments: Tensor) -> None:
        for _, place, norm in self._each(0):
            norm.update(moments[place])

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for norm in self.normalizers.values() for tensor in norm.tensors]

    def normalize(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        out = torch.zeros_like(rows) if out is None else out
        for columns, _, norm in self._each(rows.shape[-2]):
            norm.normalize(rows[..., columns, : norm.width], out=out[..., columns, : norm.width])
        return out

    def denormalize(self, rows: Tensor) -> Tensor:
        """Returns values [..., N] in their own units."""
        return torch.cat(
            [norm.denormalize(rows[..., place]) for place, _, norm in self._each(rows.shape[-1])],
            -1,
        )

    def state_dict(self) -> dict[str, Any]:
        return {name: norm.state_dict() for name, norm in self.normalizers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.keys() != self.normalizers.keys():
            raise CheckpointError(
                f"the checkpoint has policies {', '.join(state)}; the config has "
                f"{', '.join(self.normalizers)}. Use the multi_agent section of its run."
            )
        for name, norm in self.normalizers.items():
            norm.load_state_dict(state[name])

    def _each(self, num_rows: int) -> Iterator[tuple[slice, slice, RunningNormalizer]]:
        """Returns the rows of each group, its place among moments, and its normaliser."""
        places = slices_of([norm.num_moments for norm in self.normalizers.values()])
        return zip(rows_of(self.groups, num_rows), places, self.normalizers.values(), strict=True)
