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

# What follows a row: the row N places further, or nothing yet, or else, from 0 on, twice the number
# of the observation that its episode ended with, and one more where no value is to come after it.
GOES_ON: Final = -1
_NEWEST: Final = -2
MADE: Final = ("next_observation", "discount")  # not kept: made when rows are drawn
MADE_OF: Final = ("raw_observation", "next_observation", "reward", "done", "terminated")
_PART: Final = 256  # of places, so many are ends of episodes, before more are


class Storage:
    """The newest rows of N environments, up to `capacity` (rounded down to whole steps of all).

    An observation is kept once: what a row led to is the observation of the row that follows it.
    Only what episodes ended with is kept besides. Of stacks of frames the newest frame is kept, and
    stacks are gathered when rows are drawn. Where the environments do not go on from what was
    seen last (they were made anew, or others have put their rows in), the rows before end as if
    they were cut by a time limit.

    `columns` are those of the minibatches. `next_observation` and `discount` among them are made
    from `n_step` rows at most, of which there are fewer where an episode ends, and where nothing
    newer was put in yet: `reward` is their discounted sum then, `next_observation` what followed
    the last of them, and `discount` the weight of its value: gamma to the power of their number,
    0 where the episode was over.
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
        """`batch`: one such as will be put in, of which only types and shapes are looked at.

        `in_turn`: batches may go on from each other, where that is what observations say.
        `stacking`: how its observations are stacks of frames, where transitions are made of them;
        `static`: the way of a GPU, which waits for nothing (None: on all devices but the CPU).
        RoleError where there is no memory for it.
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
        # One more, where the observation lies that the newest step led to, and those whose frames
        # the stack of the oldest one has.
        older = stacking.count - 1 if self._follows and stacking is not None else 0
        self._ring = StepRing(self._capacity + 1 + older, self.num_env)
        self.device, self._static = device, static_on(device, static)
        self._n_step, self._over = n_step, "terminated" if bootstrap_time_limit else "done"
        if self._follows:
            kept.pop("raw_observation", None)
        shapes = {name: batch[name].shape[2:] for name in kept}
        types = {name: batch[name].dtype for name in kept}
        self.nbytes = self._ring.places * sum(
            shape.numel() * types[name].itemsize for name, shape in shapes.items()
        )
        ends = max(4 * first.shape[0] * self.num_env, self._ring.places // _PART)
        if self._follows:
            seen = batch["raw_observation"]
            frame = seen.shape[-1] // (1 if stacking is None else stacking.count)
            self.nbytes += StoredObservations.nbytes(self._ring, seen, stacking)
            self.nbytes += 8 * self._ring.places + ends * frame * seen.itemsize
        self._check_memory(self.nbytes)
        self._columns = {
            name: torch.zeros(self._ring.places, *shape, dtype=types[name], device=device)
            for name, shape in shapes.items()
        }
        self._begin = self._end = 0  # steps since the beginning: those kept are from begin to end
        if not self._follows:
            return
        self._after = torch.full((self._ring.places,), GOES_ON, device=device)  # int64
        self._seen = StoredObservations(
            self._ring, batch["raw_observation"], stacking, device=device, static=self._static,
            check_memory=self._check_memory,
        )  # fmt: skip
        self._finals = SideRing(
            ends, self._seen.frames[:1], static=self._static, check_memory=self._check_memory,
            in_use=lambda: self._after[self._after >= 0] // 2,
        )  # fmt: skip
        powers = torch.tensor([gamma**m for m in range(n_step + 1)], dtype=torch.float64)
        self._discounts = powers.float().to(device)
        self._offsets = (torch.arange(n_step, device=device) * self.num_env).unsqueeze(-1)

    def _check_memory(self, more: int) -> None:
        """Raises RoleError where there are not so many bytes more."""
        capacity = self._capacity * self.num_env
        if self.device.type == "cuda":
            free, has = torch.cuda.mem_get_info(self.device)[0], "the GPU"
        else:
            from gmi_drl.gmi.usage.processes import host_memory  # of who trains

            memory = host_memory()
            free, has = memory.free_bytes, memory.whose
        if more > free:
            fits = capacity * free // more
            other = ", replay_device: cpu" if self.device.type == "cuda" else ", fewer GMIs"
            raise RoleError(
                f"algorithm.replay_capacity={capacity}; the replay needs {more:,} bytes more "
                f"({more // self._ring.places:,} a step), and {has} has {free:,} free. Use "
                f"{fits:,} or fewer{other}, or a machine with more."
            )

    def __len__(self) -> int:
        return (self._end - self._begin) * self.num_env

    @property
    def rows(self) -> range:
        """The rows that may be drawn, counted since the beginning; row r lies at r % places."""
        return range(self._begin * self.num_env, self._end * self.num_env)

    @property
    def observation_width(self) -> int:
        """The numbers of an observation, where transitions are made."""
        return self._seen.frames.shape[1] * self._seen.count

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of a minibatch, about: two observations of float32, and the rest."""
        seen = 2 * 4 * self.observation_width if self._follows else 0
        return self.nbytes // self._ring.places + seen

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
        at = range(self._end, self._end + steps - first)
        if self._follows:
            seen, led_to = batch["raw_observation"][first:], batch["next_observation"]
            goes_on = self._end_what_does_not_go_on(seen[0])
            self._ring.write(self._after, self._what_follows(batch, first), at)
            self._seen.put(seen, batch["done"][first:], goes_on, at)
            self._seen.put_head(led_to[-1], at.stop)
            self._after[self._ring.step(at.stop)].fill_(GOES_ON)
        for name, column in self._columns.items():
            self._ring.write(column, batch[name][first:], at)
        self._end = at.stop
        self._begin = max(self._begin, self._end - self._capacity)
        return int(steps * num_env)

    def take_back(self, rows: int) -> None:
        """Forgets the last `rows` that were put in; what they were written over is lost."""
        end = self._end - rows // self.num_env
        if end <= self._begin:
            self.clear(max(end, 0))
            return
        if self._follows:
            for places, _ in self._ring.pieces(range(end, self._end)):
                self._after[places].fill_(GOES_ON)
            newest = self._after[self._ring.step(end - 1)]
            newest.masked_fill_(newest == GOES_ON, _NEWEST)
        self._end = end

    def clear(self, end: int = 0) -> None:
        """Forgets all rows; `end`: where the next step is counted from."""
        self._begin = self._end = end
        if self._follows:
            self._after.fill_(GOES_ON)
            self._seen.clear()

    def gather(self, places: Tensor, device: torch.device | None = None) -> Batch:
        """Returns the rows at some places [B] as a minibatch, copied; None: where they are kept."""
        rows = {
            name: column.index_select(0, places)
            for name, column in self._columns.items()
            if name in self._names
        }
        if self._follows:
            if "raw_observation" in self._names:
                rows["raw_observation"] = self._seen.at(places)
            rows |= self._transitions(places, rows.get("reward"))
        drawn = {name: column.to(device or self.device) for name, column in rows.items()}
        # Bytes are for networks to compute with, and travel as bytes.
        return Batch({n: c.float() if c.dtype == torch.uint8 else c for n, c in drawn.items()})

    def _counted(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the places [n, B] from each on, and whether they count [n, B]."""
        window = (places + self._offsets) % self._ring.places
        ends = (self._after.take(window) != GOES_ON).cumsum(0)
        # Up to the first that nothing follows, itself included.
        counts = torch.ones_like(ends, dtype=torch.bool)
        counts[1:] = ends[:-1] == 0
        return window, counts

    def _transitions(self, places: Tensor, reward: Tensor | None) -> dict[str, Tensor]:
        if self._n_step > 1:
            window, counts = self._counted(places)
            rewards = self._columns["reward"].take(window)
            reward = (rewards * counts * self._discounts[:-1, None]).sum(0)
            number = counts.sum(0)
            last = window.gather(0, (number - 1).unsqueeze(0))[0]
            discount = self._discounts.take(number)
        else:
            last, discount = places, self._discounts[1:].expand(len(places))
        after = self._after.index_select(0, last)
        made: dict[str, Tensor] = {} if reward is None else {"reward": reward}
        # The remainder of what is negative is not positive.
        made["discount"] = discount.masked_fill(after.fmod(2) == 1, 0.0)
        if "next_observation" in self._names:
            following = (last + self.num_env) % self._ring.places
            newest = self._seen.frames.index_select(0, following)
            if self._static:
                newest = torch.where((after >= 0)[:, None], self._finals.take(after // 2), newest)
            elif len(which := (after >= 0).nonzero().squeeze(-1)):
                newest[which] = self._finals.take(after[which] // 2)
            made["next_observation"] = self._seen.after(last, newest)
        return made

    def whose(self, place: int) -> tuple[int, int]:
        """Returns the environment of the row at a place, and its step since the beginning."""
        slot, env = divmod(place, self.num_env)
        return env, self._end - 1 - (self._end - 1 - slot) % self._ring.slots

    # What follows rows ------------------------------------------------------------------------

    def _what_follows(self, batch: Batch, first: int) -> Tensor:
        """Returns what follows each row from step `first` on; keeps what episodes ended with."""
        done, over = batch["done"][first:].bool(), batch[self._over][first:].bool()
        done, over = done.to(self.device), over.to(self.device)
        seen = self._seen.newest(batch["next_observation"][first:]).flatten(0, 1)
        number = self._finals.keep(done.flatten(), seen)
        after = (2 * number.view_as(done) + over).masked_fill_(~done, GOES_ON)
        after[-1].masked_fill_(after[-1] == GOES_ON, _NEWEST)
        return after

    def _end_what_does_not_go_on(self, seen: Tensor) -> Tensor:
        """Has the newest rows go on with what is seen next [N, D], or end with what was seen.

        Returns which go on [N].
        """
        if self._begin == self._end:
            return torch.zeros(self.num_env, dtype=torch.bool, device=self.device)
        at = self._ring.step(self._end - 1)
        newest, frame = self._after[at], self._seen.frames[self._ring.step(self._end)]
        led_to = self._seen.after(torch.arange(at.start, at.stop, device=self.device), frame)
        undecided = newest == _NEWEST
        goes_on = undecided & (seen.to(led_to) == led_to).all(1) & self._in_turn
        cut = undecided & ~goes_on
        number = self._finals.keep(cut, frame)
        newest.masked_fill_(undecided, GOES_ON)
        newest.copy_(torch.where(cut, 2 * number, newest))
        return goes_on

    # Checkpoints ------------------------------------------------------------------------------

    def _kept(self) -> dict[str, Tensor]:
        """Returns the columns of a checkpoint."""
        if not self._follows:
            return dict(self._columns)
        return self._columns | {"after": self._after} | self._seen.columns

    def state_dict(self) -> dict[str, Any]:
        """Returns what is kept; the memory itself where the ring has been round."""
        used = (self._end + 1) * self.num_env
        state: dict[str, Any] = {
            "columns": {  # a view would be saved with all of its memory
                name: column[:used].clone() if used < self._ring.places else column
                for name, column in self._kept().items()
            },
            "slots": self._ring.slots, "num_env": self.num_env,
            "begin": self._begin, "end": self._end,
        }  # fmt: skip
        if self._follows:
            state |= dict(zip(("finals", "next_final"), self._finals.state(), strict=True))
            state |= self._seen.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on as the one that gave it; of another capacity, with the newest rows that fit."""
        mine = self._kept()
        saved: dict[str, Tensor] = state["columns"]
        if (its := _described(saved)) != (own := _described(mine)):
            raise CheckpointError(
                f"the replay of this checkpoint keeps {its}; this run keeps {own}. Resume with the "
                "environment and algorithm that wrote it, or set algorithm.replay_save: false, "
                "which begins a replay anew."
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
            for name, column in mine.items():
                column[: len(saved[name])].copy_(saved[name])
        else:
            older = self._ring.slots - self._capacity - 1  # whose frames the oldest stack has
            steps = range(max(begin - older, 0), end + 1)
            for name, column in mine.items():
                ring = saved[name].view(-1, self.num_env, *column.shape[1:])
                for at, part in self._ring.pieces(steps):
                    those = torch.arange(steps.start, steps.stop)[part] % slots
                    column[at].copy_(ring[those].flatten(0, 1))
        self._begin = begin
        if self._follows:
            self._finals.load(state["finals"], state["next_final"])
            self._seen.load_state_dict(state)


def _described(columns: Mapping[str, Tensor]) -> str:
    return ", ".join(
        f"{name} {list(column.shape[1:])} of {str(column.dtype).removeprefix('torch.')}"
        for name, column in sorted(columns.items())
    )
