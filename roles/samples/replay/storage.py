"""Keeps the newest steps of environments in a ring, and makes transitions of n steps from them.

S = steps that are kept, N = environments, D = width of an observation, B = rows of a minibatch,
P = places. A row is one step of one environment; the row that follows it lies N places further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.roles.envs.protocol import Stacking
from gmi_drl.roles.errors import CheckpointError, RoleError
from gmi_drl.roles.graphs import static_on
from gmi_drl.roles.samples.batch import Batch

from .observations import StoredObservations
from .rings import SideRing, StepRing

# What follows a row: the row N places further, or nothing yet, or, from 0 on, twice the number of
# its episode's final observation, plus one where that has no value.
GOES_ON: Final = -1
_NEWEST: Final = -2
MADE: Final = ("next_observation", "discount")  # not kept: made when rows are drawn
MADE_OF: Final = ("raw_observation", "next_observation", "reward", "done", "terminated")
_PART: Final = 256  # one place in so many has room for a final observation at first


class Storage:
    """The newest rows of N environments, up to `capacity` (rounded down to whole steps of all).

    An observation is kept once: what a row led to is the observation of the row that follows it.
    Only the final observations of episodes are kept besides. Of stacks of frames the newest frame
    is kept, and stacks are gathered when rows are drawn. Where the environments do not go on from
    their last observations (they were made anew, or others have put their rows in), the rows before
    end as if they were cut by a time limit.

    `columns` are those of the minibatches. `next_observation` and `discount` among them are made
    from `n_step` rows, or fewer where an episode ends, or no newer row is there yet: `reward` is
    then their discounted sum, `next_observation` what followed the last of them, and `discount` the
    weight of its value: gamma to the power of their number, 0 where the episode was over.
    """

    rows_are_apart = True  # a minibatch [B] is cut into smaller ones by its rows

    def __init__(
        self,
        batch: Batch,
        columns: Sequence[str],
        capacity: int,
        device: torch.device,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        bootstrap_time_limit: bool = True,
        stacking: Stacking | None = None,
        in_turn: bool = True,
        static: bool | None = None,
    ) -> None:
        """`batch`: an example of those that will be put in, for their types and shapes.

        `in_turn`: batches go on from each other, where observations are the same. `stacking`: how
        observations are stacks of frames, where transitions are made. `static`: work as on a GPU,
        which waits for nothing (None: on all devices but the CPU). RoleError where there is not
        enough memory.
        """
        self._names, self._in_turn = tuple(columns), in_turn
        self._follows = any(name in self._names for name in MADE)
        if self._follows and (missing := [name for name in MADE_OF if name not in batch.columns]):
            raise RoleError(
                f"a replay makes {' and '.join(MADE)} of {', '.join(MADE_OF)}; the batch has no "
                f"{', '.join(missing)}. Name them in the algorithm's `recorded`."
            )
        kept = dict.fromkeys(name for name in self._names if name not in MADE)
        if self._follows:
            kept |= dict.fromkeys(("reward",))
        first = batch[next(iter(kept))]
        self.num_env = first.shape[1]
        if capacity < self.num_env:
            raise RoleError(
                f"algorithm.replay_capacity={capacity}; must hold a step of all {self.num_env} "
                "environments that a GMI samples from. Raise it, or lower env.num_env."
            )
        self._capacity = capacity // self.num_env  # steps
        # One more slot is for the observation that the newest step led to, and further ones are for
        # the older frames of the oldest stack.
        older = stacking.count - 1 if self._follows and stacking is not None else 0
        self._ring = StepRing(self._capacity + 1 + older, self.num_env)
        self.device, self._static = device, static_on(device, static)
        self._n_step, self._over_column = n_step, "terminated" if bootstrap_time_limit else "done"
        if self._follows:
            kept.pop("raw_observation", None)
        shapes = {name: batch[name].shape[2:] for name in kept}
        types = {name: batch[name].dtype for name in kept}
        self.nbytes = self._ring.places * sum(
            shape.numel() * types[name].itemsize for name, shape in shapes.items()
        )
        ends = max(4 * first.shape[0] * self.num_env, self._ring.places // _PART)
        if self._follows:
            observation = batch["raw_observation"]
            frame = observation.shape[-1] // (1 if stacking is None else stacking.count)
            self.nbytes += StoredObservations.nbytes(self._ring, observation, stacking)
            self.nbytes += 8 * self._ring.places + ends * frame * observation.itemsize
        self._check_memory(self.nbytes)
        self._columns = {
            name: torch.zeros(self._ring.places, *shape, dtype=types[name], device=device)
            for name, shape in shapes.items()
        }
        self._begin = self._end = 0  # steps that are kept, counted since the beginning
        if not self._follows:
            return
        self._successors = torch.full((self._ring.places,), GOES_ON, device=device)  # int64
        self._stored = StoredObservations(
            self._ring, batch["raw_observation"], stacking, device=device, static=self._static,
            check_memory=self._check_memory,
        )  # fmt: skip
        self._finals = SideRing(
            ends, self._stored.frames[:1], static=self._static, check_memory=self._check_memory,
            in_use=lambda: self._successors[self._successors >= 0] // 2,
        )  # fmt: skip
        powers = torch.tensor([gamma**k for k in range(n_step + 1)], dtype=torch.float64)
        self._discounts = powers.float().to(device)
        self._offsets = (torch.arange(n_step, device=device) * self.num_env).unsqueeze(-1)

    def _check_memory(self, more: int) -> None:
        """Raises RoleError unless so many more bytes are free."""
        capacity = self._capacity * self.num_env
        if self.device.type == "cuda":
            free, owner = torch.cuda.mem_get_info(self.device)[0], "the GPU"
        else:
            from gmi_drl.gmi.usage.processes import host_memory  # of who trains

            memory = host_memory()
            free, owner = memory.free_bytes, memory.whose
        if more > free:
            max_capacity = capacity * free // more
            remedy = ", replay_device: cpu" if self.device.type == "cuda" else ", fewer GMIs"
            raise RoleError(
                f"algorithm.replay_capacity={capacity}; the replay needs {more:,} bytes more "
                f"({more // self._ring.places:,} a step), and {owner} has {free:,} free. Use "
                f"{max_capacity:,} or fewer{remedy}, or a machine with more."
            )

    def __len__(self) -> int:
        return (self._end - self._begin) * self.num_env

    @property
    def rows(self) -> range:
        """The rows that may be drawn, counted since the beginning; row r lies at r % places."""
        return range(self._begin * self.num_env, self._end * self.num_env)

    @property
    def observation_width(self) -> int:
        """The width of an observation, where transitions are made."""
        return self._stored.frames.shape[1] * self._stored.count

    @property
    def row_bytes(self) -> int:
        """The approximate bytes of a minibatch's row: two float32 observations, and the rest."""
        observation_bytes = 2 * 4 * self.observation_width if self._follows else 0
        return self.nbytes // self._ring.places + observation_bytes

    @property
    def places(self) -> int:
        """The places of rows that may be drawn."""
        return self._ring.places

    def put(self, batch: Batch) -> int:
        """Writes a batch [T, N] behind the newest step, over the oldest ones; returns its rows."""
        steps, num_env = batch[next(iter(self._columns))].shape[:2]
        if num_env != self.num_env:
            raise ValueError(f"a batch of {num_env} environments; the replay has {self.num_env}")
        first = max(0, steps - self._capacity)  # the newest that fit
        if first:
            self.clear(self._end + first)
        new_steps = range(self._end, self._end + steps - first)
        if self._follows:
            raw, next_raw = batch["raw_observation"][first:], batch["next_observation"]
            goes_on = self._link_newest(raw[0])
            self._ring.write(self._successors, self._successors_of(batch, first), new_steps)
            self._stored.put(raw, batch["done"][first:], goes_on, new_steps)
            self._stored.put_head(next_raw[-1], new_steps.stop)
            self._successors[self._ring.step(new_steps.stop)].fill_(GOES_ON)
        for name, column in self._columns.items():
            self._ring.write(column, batch[name][first:], new_steps)
        self._end = new_steps.stop
        self._begin = max(self._begin, self._end - self._capacity)
        return int(steps * num_env)

    def take_back(self, rows: int) -> None:
        """Forgets the last `rows` that were put in; the rows that these replaced are lost."""
        end = self._end - rows // self.num_env
        if end <= self._begin:
            self.clear(max(end, 0))
            return
        if self._follows:
            for places, _ in self._ring.pieces(range(end, self._end)):
                self._successors[places].fill_(GOES_ON)
            newest = self._successors[self._ring.step(end - 1)]
            newest.masked_fill_(newest == GOES_ON, _NEWEST)
        self._end = end

    def clear(self, end: int = 0) -> None:
        """Forgets all rows; `end`: where the next step is counted from."""
        self._begin = self._end = end
        if self._follows:
            self._successors.fill_(GOES_ON)
            self._stored.clear()

    def gather(self, places: Tensor, device: torch.device | None = None) -> Batch:
        """Returns the rows at places [B] as a minibatch, copied; None: on the storage's device."""
        rows = {
            name: column.index_select(0, places)
            for name, column in self._columns.items()
            if name in self._names
        }
        if self._follows:
            if "raw_observation" in self._names:
                rows["raw_observation"] = self._stored.at(places)
            rows |= self._transitions(places, rows.get("reward"))
        drawn = {name: column.to(device or self.device) for name, column in rows.items()}
        # Bytes travel to the device as bytes, and become floats there.
        return Batch({n: c.float() if c.dtype == torch.uint8 else c for n, c in drawn.items()})

    def _n_step_places(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the places [n, B] of n-step rows, and which of them count [n, B]."""
        window = (places + self._offsets) % self._ring.places
        ends = (self._successors.take(window) != GOES_ON).cumsum(0)
        # Up to and with the first that no row follows.
        counts = torch.ones_like(ends, dtype=torch.bool)
        counts[1:] = ends[:-1] == 0
        return window, counts

    def _transitions(self, places: Tensor, reward: Tensor | None) -> dict[str, Tensor]:
        if self._n_step > 1:
            window, counts = self._n_step_places(places)
            rewards = self._columns["reward"].take(window)
            reward = (rewards * counts * self._discounts[:-1, None]).sum(0)
            num_steps = counts.sum(0)
            last = window.gather(0, (num_steps - 1).unsqueeze(0))[0]
            discount = self._discounts.take(num_steps)
        else:
            last, discount = places, self._discounts[1:].expand(len(places))
        codes = self._successors.index_select(0, last)
        columns: dict[str, Tensor] = {} if reward is None else {"reward": reward}
        # Remainders of negative codes are not positive.
        columns["discount"] = discount.masked_fill(codes.fmod(2) == 1, 0.0)
        if "next_observation" in self._names:
            next_places = (last + self.num_env) % self._ring.places
            newest = self._stored.frames.index_select(0, next_places)
            if self._static:
                newest = torch.where((codes >= 0)[:, None], self._finals.take(codes // 2), newest)
            elif len(ended := (codes >= 0).nonzero().squeeze(-1)):
                newest[ended] = self._finals.take(codes[ended] // 2)
            columns["next_observation"] = self._stored.after(last, newest)
        return columns

    def whose(self, place: int) -> tuple[int, int]:
        """Returns the environment of the row at a place, and its step since the beginning."""
        slot, env = divmod(place, self.num_env)
        return env, self._end - 1 - (self._end - 1 - slot) % self._ring.slots

    # What follows rows ------------------------------------------------------------------------

    def _successors_of(self, batch: Batch, first: int) -> Tensor:
        """Returns what follows each row from step `first` on, and keeps final observations."""
        done, is_over = batch["done"][first:].bool(), batch[self._over_column][first:].bool()
        done, is_over = done.to(self.device), is_over.to(self.device)
        final = self._stored.newest(batch["next_observation"][first:]).flatten(0, 1)
        number = self._finals.keep(done.flatten(), final)
        codes = (2 * number.view_as(done) + is_over).masked_fill_(~done, GOES_ON)
        codes[-1].masked_fill_(codes[-1] == GOES_ON, _NEWEST)
        return codes

    def _link_newest(self, seen: Tensor) -> Tensor:
        """Links the newest rows to the next observations `seen` [N, D], or ends them.

        Returns which of them go on [N].
        """
        if self._begin == self._end:
            return torch.zeros(self.num_env, dtype=torch.bool, device=self.device)
        last = self._ring.step(self._end - 1)
        newest, frame = self._successors[last], self._stored.frames[self._ring.step(self._end)]
        latest = self._stored.after(torch.arange(last.start, last.stop, device=self.device), frame)
        undecided = newest == _NEWEST
        goes_on = undecided & (seen.to(latest) == latest).all(1) & self._in_turn
        cut = undecided & ~goes_on
        number = self._finals.keep(cut, frame)
        newest.masked_fill_(undecided, GOES_ON)
        newest.copy_(torch.where(cut, 2 * number, newest))
        return goes_on

    # Checkpoints ------------------------------------------------------------------------------

    def _checkpoint_columns(self) -> dict[str, Tensor]:
        """Returns the columns of a checkpoint."""
        if not self._follows:
            return dict(self._columns)
        return self._columns | {"after": self._successors} | self._stored.columns

    def state_dict(self) -> dict[str, Any]:
        """Returns the rows; the memory itself once the ring is full."""
        used = (self._end + 1) * self.num_env
        state: dict[str, Any] = {
            "columns": {  # a view would be saved with all of its memory
                name: column[:used].clone() if used < self._ring.places else column
                for name, column in self._checkpoint_columns().items()
            },
            "slots": self._ring.slots, "num_env": self.num_env,
            "begin": self._begin, "end": self._end,
        }  # fmt: skip
        if self._follows:
            state |= dict(zip(("finals", "next_final"), self._finals.state(), strict=True))
            state |= self._stored.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads `state`; of another capacity, the newest rows that fit."""
        columns = self._checkpoint_columns()
        saved: dict[str, Tensor] = state["columns"]
        if (saved_layout := _described(saved)) != (layout := _described(columns)):
            raise CheckpointError(
                f"the replay of this checkpoint keeps {saved_layout}; this run keeps {layout}. "
                "Resume with the environment and algorithm that wrote it, or set "
                "algorithm.replay_save: false, which begins a replay anew."
            )
        if state["num_env"] != self.num_env:
            raise CheckpointError(
                f"the replay of this checkpoint is of {state['num_env']} environments; this run "
                f"has {self.num_env} in a GMI. Set env.num_env back, or algorithm.replay_save: "
                "false, which begins a replay anew."
            )
        end, slots = state["end"], state["slots"]
        begin = max(state["begin"], end - self._capacity)
        self.clear(end)
        if slots == self._ring.slots:
            for name, column in columns.items():
                column[: len(saved[name])].copy_(saved[name])
        else:
            older = self._ring.slots - self._capacity - 1  # whose frames the oldest stack has
            steps = range(max(begin - older, 0), end + 1)
            for name, column in columns.items():
                ring = saved[name].view(-1, self.num_env, *column.shape[1:])
                for places, part in self._ring.pieces(steps):
                    saved_slots = torch.arange(steps.start, steps.stop)[part] % slots
                    column[places].copy_(ring[saved_slots].flatten(0, 1))
        self._begin = begin
        if self._follows:
            self._finals.load(state["finals"], state["next_final"])
            self._stored.load_state_dict(state)


def _described(columns: Mapping[str, Tensor]) -> str:
    return ", ".join(
        f"{name} {list(column.shape[1:])} of {str(column.dtype).removeprefix('torch.')}"
        for name, column in sorted(columns.items())
    )
