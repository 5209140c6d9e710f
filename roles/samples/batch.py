"""Batches of experience: columns by name, of which the float ones lie side by side in packed rows.

T = steps, N = environments, B = rows of a minibatch, D = width of an observation, A = numbers of an
action row. A packed row holds everything that a minibatch of rows needs, so that drawing one is one
gather, and is padded to a multiple of 8 numbers (`ROW_MULTIPLE`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from gmi_drl.placement.faults import closest
from gmi_drl.roles.envs.agents import GroupedActions, rows_of
from gmi_drl.roles.envs.spaces import action_columns, is_bounded, leaves
from gmi_drl.roles.policies import ROW_MULTIPLE
from gmi_drl.roles.policies.normalize import RunningNormalizer, normalized
from gmi_drl.roles.policies.policy import Policy
from gmi_drl.runtime.store.alignment import round_up

from .frames import Frames, Observed


class RowLayout:
    """The places of a packed row's parts: an index for a single number, else a slice."""

    def __init__(self, widths: Mapping[str, int], groups: Mapping[str, tuple[str, str]]) -> None:
        self.indices: dict[str, slice | int] = {}
        self._widths, self._groups = dict(widths), dict(groups)
        begins, offset = {}, 0
        for name, width in widths.items():
            self.indices[name] = slice(offset, offset + width) if width else offset
            begins[name], offset = offset, offset + (width or 1)
        for name, (first, last) in groups.items():
            self.indices[name] = slice(begins[first], begins[last] + (widths[last] or 1))
        self.numbers, self.width = offset, round_up(offset, ROW_MULTIPLE)

    def behind(self, name: str, width: int) -> RowLayout:
        """Returns the layout of rows that begin with `name` [width], followed by these parts."""
        return RowLayout({name: width, **self._widths}, self._groups)

    def narrowed(self, widths: Mapping[str, int]) -> RowLayout:
        """Returns the layout of rows whose parts have smaller `widths`, in the places of these.

        A part begins where this one does, but the first part of a group ends where this one does.
        """
        layout = RowLayout(self._widths, self._groups)
        firsts = {first: name for name, (first, _) in self._groups.items()}
        for name, width in widths.items():
            index = self.indices[name]
            if isinstance(index, int):
                continue
            if name in firsts:
                begin = index.stop - width
                group = self.indices[firsts[name]]
                assert isinstance(group, slice)
                layout.indices[firsts[name]] = slice(begin, group.stop)
            else:
                begin = index.start
            layout.indices[name] = slice(begin, begin + width)
        return layout

    def __getattr__(self, name: str) -> slice | int:
        indices = self.__dict__.get("indices", {})  # none in a copy that is not finished
        if name not in indices:
            raise AttributeError(f"rows have no {name!r}; they have {', '.join(indices)}")
        index: slice | int = indices[name]
        return index

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Returns the parts of `rows` [..., width] by name: [..., w], or [...] for a number."""
        return {name: rows[..., index] for name, index in self.indices.items()}


@dataclass(frozen=True)
class Sequences:
    """How rows follow each other, for a policy that remembers: T steps of N environments."""

    state: Tensor  # [N, S] before the first step
    done: Tensor  # [T, N], 1 where the state is dropped after the step


@dataclass
class Batch:
    """Experience of N environments over T steps, or a minibatch of it.

    What a `Collector` fills:

    - `raw_observation` [T, N, D] as the environment shows it, of bytes where that does, `reward`
      [T, N] scaled (at a time limit with gamma * V(final observation) inside), `ended` [T, N] bool
      and `done` the same as numbers: whether the episode ended with that step, `noise` that actions
      were drawn by
    - packed: `observation` normalised, `action` as sampled (before the environment clamps it), the
      columns of the policy, and those that the algorithm fills in `postprocess`
    - where bytes are not normalised they are in `frames` alone, and rows have no `observation`: a
      minibatch of rows or of segments makes its own. `raw_observation` is the newest frame [T, N,
      F] of each
    - where rows are agents that come and go: `present` [T, N] bool, who acted; nothing is learned
      from the other rows
    - where the algorithm asks for them: `next_observation` [T, N, D] raw, the final observation
      where an episode ended, `terminated` [T, N] bool, and `paid` [T, N], the reward as the
      environment pays it
    """

    columns: dict[str, Tensor]
    bootstrap: dict[str, Tensor] = field(default_factory=dict)  # [N, ...] after the last step
    row_constants: dict[str, Tensor] = field(default_factory=dict)  # of the policy that sampled
    rows: Tensor | None = None  # [T, N, W] or [B, W], what packed columns are views of
    row_layout: RowLayout | None = None
    sequences: Sequences | None = None  # where the policy remembers
    frames: Frames | None = None

    @classmethod
    def allocate(
        cls,
        steps: int,
        num_env: int,
        observed: Observed | int,
        policy: Policy,
        device: torch.device,
        *,
        filled: Iterable[str] = (),
        recorded: Collection[str] = (),
        bootstrap: Iterable[str] = (),
        come_and_go: bool = False,
    ) -> Batch:
        """Returns the buffers of a horizon; `filled`, `recorded`, `bootstrap`: see Algorithm.

        `observed`: how observations are kept; a number is the width of float observations.
        `come_and_go`: rows are agents, which are not always present.
        """
        if isinstance(observed, int):
            observed = Observed(observed)
        width, dtype, stacking = observed.width, observed.dtype, observed.stacking
        widths = {"action": policy.action_columns, **policy.columns, **dict.fromkeys(filled, 0)}
        if stacking is None:
            widths = {"observation": width, **widths}
        row_layout = RowLayout(widths, policy.column_groups)
        shape = (steps, num_env)
        rows = torch.zeros(*shape, row_layout.width, device=device)
        num_older = 0 if stacking is None else stacking.count - 1
        frames = torch.zeros(num_older + steps, num_env, observed.frame, dtype=dtype, device=device)
        columns = row_layout.views(rows) | {
            "raw_observation": frames[num_older:],
            "reward": torch.zeros(shape, device=device),
            "ended": torch.zeros(shape, dtype=torch.bool, device=device),
            "done": torch.zeros(shape, device=device),
            "noise": torch.zeros(*shape, policy.noise_columns, device=device),
        }
        if come_and_go:
            columns["present"] = torch.ones(shape, dtype=torch.bool, device=device)
        if "next_observation" in recorded:
            columns["next_observation"] = torch.zeros(*shape, width, dtype=dtype, device=device)
        if "paid" in recorded:
            columns["paid"] = torch.zeros(shape, device=device)
        if "terminated" in recorded:
            columns["terminated"] = torch.zeros(shape, dtype=torch.bool, device=device)
        bootstraps = {
            "value": torch.zeros(num_env, device=device),
            "observation": torch.zeros(num_env, width, dtype=dtype, device=device),
        }
        sequences: Sequences | None = None
        if policy.state_columns:
            state = torch.zeros(num_env, policy.state_columns, device=device)
            sequences = Sequences(state, columns["done"])
        return cls(
            columns,
            {name: bootstraps[name] for name in bootstrap},
            {name: constant.clone() for name, constant in policy.row_constants.items()},
            rows,
            row_layout,
            sequences,
            None if stacking is None else Frames(frames, columns["done"], stacking),
        )

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(self._missing_text(name)) from None

    def _missing_text(self, name: str) -> str:
        rows = self.rows is not None and self.rows.ndim == 2
        segment_columns = ("observations", "reward", "done") if rows else ()
        remedy, near = "", closest(name, (*self.columns, *segment_columns))
        if near in self.columns:
            remedy = f" Did you mean {near}?"
        elif near:
            remedy = f" Say whole_segments = True in the algorithm's class: segments have {near}."
        return f"a batch without {name}; it has {', '.join(self.columns)}.{remedy}"

    def flat(self) -> Batch:
        """Returns the packed columns of all steps and environments [T * N]; views."""
        assert self.rows is not None
        return self.minibatch(self.rows.flatten(0, 1), self.sequences)

    def minibatch(
        self, rows: Tensor, sequences: Sequences | None = None, layout: RowLayout | None = None
    ) -> Batch:
        """Returns `rows` [B, W], packed as `layout` or as this batch's, as a minibatch; views."""
        layout = layout or self.row_layout
        assert layout is not None
        return Batch(layout.views(rows), {}, self.row_constants, rows, layout, sequences)

    def steps(self) -> list[dict[str, Tensor]]:
        """Returns views of all columns at each step, to be made once: a view costs like a copy."""
        return [
            {name: column[t] for name, column in self.columns.items()}
            for t in range(len(self["reward"]))
        ]

    def segments(self, normalizer: RunningNormalizer | None, fields: Iterable[str]) -> Batch:
        """Returns whole segments for a loss.

        `observations` [T + 1, N, D] are normalised copies, the last ones in row T; `fields`
        [T, N, ...] are views. Observations of `frames` are made by `with_observations`.
        """
        if self.frames is not None:
            columns = {name: self[name] for name in fields}
            return Batch(columns, self.bootstrap, sequences=self.sequences, frames=self.frames)
        raw, last = self["raw_observation"], self.bootstrap["observation"]
        observations = last.new_empty(len(raw) + 1, *last.shape, dtype=torch.float32)
        for observation, out in ((raw, observations[:-1]), (last, observations[-1])):
            normalized(normalizer, observation, out)
        columns = {"observations": observations, **{name: self[name] for name in fields}}
        return Batch(columns, sequences=self.sequences)

    def with_observations(self) -> Batch:
        """Returns segments with the `observations` of their `frames`, as a minibatch has them."""
        if self.frames is None:
            return self
        last = self.bootstrap["observation"]
        steps = len(self.frames.done)
        observations = last.new_empty(steps + 1, *last.shape, dtype=torch.float32)
        self.frames.all(observations[:-1])
        observations[-1].copy_(last)
        return Batch({"observations": observations, **self.columns}, sequences=self.sequences)

    def transitions(self, normalizer: RunningNormalizer | None) -> Batch:
        """Returns rows [B] for a loss, with observations normalised by the present statistics."""
        columns = dict(self.columns)
        columns["observation"] = columns.pop("raw_observation")
        if normalizer is not None:
            for name in ("observation", "next_observation"):
                if name in columns:
                    columns[name] = normalizer.normalize(columns[name])
        return Batch(columns)

    def of_group(
        self, rows: slice, layout: RowLayout, noise: int, constants: Mapping[str, Tensor]
    ) -> Batch:
        """Returns the part of the environments or agents `rows` [n], as views.

        `layout` is that of their packed rows, `noise` the width of their random numbers, and
        `constants` are those of the policy that acts for them.
        """
        assert self.rows is not None
        packed_rows = self.rows[:, rows]
        columns = {
            name: column[:, rows]
            for name, column in self.columns.items()
            if name not in layout.indices
        }
        columns["noise"] = columns["noise"][..., :noise]
        bootstrap = {name: last[rows] for name, last in self.bootstrap.items()}
        return Batch(
            columns | layout.views(packed_rows), bootstrap, dict(constants), packed_rows, layout
        )

    def environments(self, picked: Tensor) -> Batch:
        """Returns all steps of some environments (indices [n]), copied."""
        columns = {name: column.index_select(1, picked) for name, column in self.columns.items()}
        sequences = self.sequences
        if sequences is not None:
            state = sequences.state.index_select(0, picked)
            sequences = Sequences(state, sequences.done.index_select(1, picked))
        if self.frames is None:
            return Batch(columns, sequences=sequences)
        bootstrap = {name: last.index_select(0, picked) for name, last in self.bootstrap.items()}
        frames = self.frames.environments(picked)
        return Batch(columns, bootstrap, sequences=sequences, frames=frames)


def env_action(space: spaces.Space[Any], device: torch.device) -> Callable[[Tensor], Tensor]:
    """Returns the function that turns a policy's action rows [N, A] into what `step` takes.

    A policy acts in [-1, 1]. Actions are clamped and scaled to a bounded Box; for one with infinite
    bounds they are clamped to the finite ones alone. Choices and bits stay as they are, and
    adapters add the space's start; a Discrete alone gets an int64 vector [N].
    """
    if isinstance(space, GroupedActions):
        return _to_groups(space, device)
    if isinstance(space, spaces.Discrete):
        return lambda action: action[:, 0].long()
    if isinstance(space, spaces.Box):
        return _to_box(space, device)
    boxes: list[tuple[slice, Callable[[Tensor], Tensor]]] = []
    end = 0
    for _, leaf in leaves(space):
        begin, end = end, end + action_columns(leaf)
        if isinstance(leaf, spaces.Box):
            boxes.append((slice(begin, end), _to_box(leaf, device)))
    if not boxes:
        return lambda action: action

    def by_parts(action: Tensor) -> Tensor:
        result = action.clone()
        for columns, to_box in boxes:
            result[:, columns] = to_box(action[:, columns])
        return result

    return by_parts


def _to_groups(space: GroupedActions, device: torch.device) -> Callable[[Tensor], Tensor]:
    functions = [env_action(group.action_space, device) for group in space.groups]
    widths = [action_columns(group.action_space) for group in space.groups]

    def by_groups(action: Tensor) -> Tensor:
        result = action.clone()
        group_rows = rows_of(space.groups, len(action))
        for rows, width, to_env in zip(group_rows, widths, functions, strict=True):
            target = result[rows, :width]
            target.copy_(to_env(action[rows, :width]).view_as(target))
        return result

    return by_groups


def _to_box(space: spaces.Box, device: torch.device) -> Callable[[Tensor], Tensor]:
    if not (space.bounded_below.any() or space.bounded_above.any()):
        return lambda action: action
    low = torch.as_tensor(space.low.ravel(), dtype=torch.float32, device=device)
    high = torch.as_tensor(space.high.ravel(), dtype=torch.float32, device=device)
    if not is_bounded(space):
        return lambda action: torch.minimum(torch.maximum(action, low), high)
    half, middle = (high - low) / 2, (high + low) / 2
    if bool((half == 1).all()) and bool((middle == 0).all()):
        return lambda action: action.clamp(-1.0, 1.0)
    return lambda action: torch.addcmul(middle, action.clamp(-1.0, 1.0), half)
