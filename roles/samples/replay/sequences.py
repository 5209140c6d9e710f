"""Sequences of a replay: a horizon of one environment, and the state before it (R2D2).

T = steps of a sequence, n = `n_step`, B = sequences of a minibatch, S = numbers of a state. A
sequence is the part of a batch of one environment, so that only the state that a network began it
with is kept (Kapturowski et al., 2019, with its overlap of half a sequence: each step is in one
sequence, and in the burn-in of the next). A row of the samplers is a sequence here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gmi_drl.roles.errors import CheckpointError, RoleError
from gmi_drl.roles.samples.batch import Batch

from .storage import GOES_ON, Storage


class SequenceStorage(Storage):
    """Keeps steps as a Storage does, and the states that their horizons began with.

    Minibatches have rows [T, B] of sequences, as transitions, and further columns to unroll a
    network by:

    - `raw_observation` [T + T + n - 1, B, D]: of the burn-in (with `burn_in`), of the rows, and of
      the steps after them over which rewards are summed
    - `ended` [.., B]: 1 where the state is dropped after the step, or no row follows it
    - `ahead` [T, B] int64: after how many further rows `next_observation` comes
    - `state` [B, S] before the rows, `burn_in_state` [B, S] before the burn-in, and `burns_in` [B]:
      whether the episode goes on from the burn-in, and all of that is kept
    """

    rows_are_apart = False

    def __init__(self, batch: Batch, *arguments: Any, burn_in: bool, **options: Any) -> None:
        """`burn_in`: whether to give the horizon before, too; the rest as for Storage."""
        super().__init__(batch, *arguments, **options)
        assert batch.sequences is not None, "the policy remembers nothing"
        self._steps, state = len(batch["reward"]), batch.sequences.state
        if self._capacity < self._steps:
            raise RoleError(
                f"algorithm.replay_capacity={self._capacity * self.num_env}; must hold a "
                f"horizon of {self._steps} steps of {self.num_env} environments. Raise it, or "
                "lower horizon."
            )
        self._kept_horizons = self._capacity // self._steps + 1
        size = self._kept_horizons * self.num_env
        state_bytes = size * state.shape[1] * state.itemsize
        self._check_memory(state_bytes)
        self.nbytes += state_bytes
        self._states = torch.zeros(size, state.shape[1], device=self.device)
        self._burn_in = self._steps if burn_in else 0
        last = self._steps + self._n_step - 1
        self._window = torch.arange(-self._burn_in, last, device=self.device)[:, None]

    @property
    def _horizons(self) -> range:
        """The horizons all of whose steps are kept, counted since the beginning."""
        return range(-(-self._begin // self._steps), self._end // self._steps)

    @property
    def rows(self) -> range:
        horizons = self._horizons
        return range(horizons.start * self.num_env, horizons.stop * self.num_env)

    @property
    def places(self) -> int:
        return len(self._states)

    def put(self, batch: Batch) -> int:
        assert batch.sequences is not None
        if len(batch["reward"]) != self._steps:
            raise ValueError(f"{len(batch['reward'])} steps; the replay's have {self._steps}")
        horizon = self._end // self._steps % self._kept_horizons
        self._states.view(-1, *batch.sequences.state.shape)[horizon].copy_(batch.sequences.state)
        return super().put(batch)

    def gather(self, places: Tensor, device: torch.device | None = None) -> Batch:
        horizon, env = self._horizon(places), places % self.num_env
        steps = horizon * self._steps + self._window  # [W, B]
        window = self._at(steps, env)
        row_places = window[self._burn_in :][: self._steps].flatten()
        shape = (self._steps, len(places))
        columns = {
            name: column.view(*shape, *column.shape[1:])
            for name, column in super().gather(row_places, device).columns.items()
        }
        target, count = device or self.device, len(self._states)
        shown = self._stored.at(window.flatten()).view(*window.shape, -1).to(target)
        goes_on = self._successors.take(window) == GOES_ON
        previous = (places - self.num_env) % count
        state = self._states.index_select(0, places)
        continues = self._successors.take(self._at(horizon * self._steps - 1, env)) == GOES_ON
        # Where the state is zero an episode began.
        burns_in = continues & (horizon > self._horizons.start) & (state != 0.0).any(1)
        ahead = torch.zeros(shape, dtype=torch.int64, device=self.device)
        if self._n_step > 1:
            ahead = self._n_step_places(row_places)[1].sum(0).sub_(1).view(shape)
        return Batch(
            columns
            | {
                "raw_observation": shown.float() if shown.dtype == torch.uint8 else shown,
                "ended": (~goes_on).float().to(target), "ahead": ahead.to(target),
                "state": state.to(target),
                "burn_in_state": self._states.index_select(0, previous).to(target),
                "burns_in": burns_in.to(target),
            }
        )  # fmt: skip

    def whose(self, place: int) -> tuple[int, int]:
        horizon = int(self._horizon(torch.tensor(place)))
        return place % self.num_env, horizon * self._steps

    def _horizon(self, places: Tensor) -> Tensor:
        """Returns the horizons [B] of places, counted since the beginning."""
        last = self._end // self._steps - 1
        return last - (last - places // self.num_env) % self._kept_horizons

    def _at(self, steps: Tensor, env: Tensor) -> Tensor:
        """Returns the places of steps of environments in the ring."""
        return steps % self._ring.slots * self.num_env + env

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"states": self._states, "horizon": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (horizon := state.get("horizon", 1)) != self._steps:
            raise CheckpointError(
                f"the replay of this checkpoint has sequences of {horizon} steps; this run has "
                f"algorithm.horizon={self._steps}. Set it back, or algorithm.replay_save: false, "
                "which begins a replay anew."
            )
        super().load_state_dict(state)
        saved = state["states"].view(-1, self.num_env, self._states.shape[1])
        states = self._states.view(-1, *saved.shape[1:])
        horizons = torch.arange(self._horizons.start, self._horizons.stop)
        states[horizons % len(states)] = saved[horizons % len(saved)].to(self.device)
