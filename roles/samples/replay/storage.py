"""Keeps the newest steps of environments in a ring, and makes transitions of n steps from them.

S = steps that are kept, N = environments, D = width of an observation, B = rows of a minibatch,
P = places. A row is one step of one environment; the row that follows it lies N places further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.gmi.usage.processes import host_memory
from gmi_drl.roles.errors import CheckpointError, RoleError
from gmi_drl.roles.graphs import static_on
from gmi_drl.roles.samples.batch import Batch

# What follows a row: the row N places further, or nothing yet, or else, from 0 on, twice the number
# of the observation that its episode ended with, and one more where no value is to come after it.
_GOES_ON: Final = -1
_NEWEST: Final = -2
MADE: Final = ("next_observation", "discount")  # not kept: made when rows are drawn
MADE_OF: Final = ("raw_observation", "next_observation", "reward", "done", "terminated")


class Storage:
    """The newest rows of N environments, up to `capacity` (rounded down to whole steps of all).

    An observation is kept once: what a row led to is the observation of the row that follows it.
    Only what episodes ended with is kept besides. Where the environments do not go on from what was
    seen last (they were made anew, or others have put their rows in), the rows before end as if
    they were cut by a time limit.

    `columns` are those of the minibatches. `next_observation` and `discount` among them are made
    from `n_step` rows at most, of which there are fewer where an episode ends, and where nothing
    newer was put in yet: `reward` is their discounted sum then, `next_observation` what followed
    the last of them, and `discount` the weight of its value: gamma to the power of their number,
    0 where the episode was over.
    """

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
        static: bool | None = None,
    ) -> None:
        """`batch`: one such as will be put in, of which only types and shapes are looked at.

        `static`: the way of a GPU, which waits for nothing (None: on all devices but the CPU).
        RoleError where there is no memory for it.
        """
        self._names = tuple(columns)
        self._follows = any(name in self._names for name in MADE)
        if self._follows and (missing := [name for name in MADE_OF if name not in batch.columns]):
            raise RoleError(
                f"a replay makes {' and '.join(MADE)} of {', '.join(MADE_OF)}; the batch has no "
                f"{', '.join(missing)}. Name them in the algorithm's `recorded`."
            )
        kept = dict.fromkeys(name for name in self._names if name not in MADE)
        if self._follows:
            kept |= dict.fromkeys(("raw_observation", "reward"))
        first = batch[next(iter(kept))]
        self.num_env = first.shape[1]
        if capacity < self.num_env:
            raise RoleError(
                f"algorithm.replay_capacity={capacity}; must hold a step of all {self.num_env} "
                "environments that a GMI samples from. Raise it, or lower env.num_env."
            )
        self._capacity = capacity // self.num_env  # steps
        # One more, where the observation lies that the newest step led to.
        self._slots = self._capacity + 1
        self.places = self._slots * self.num_env
        self.device, self._static = device, static_on(device, static)
        self._n_step, self._over = n_step, "terminated" if bootstrap_time_limit else "done"
        shapes = {name: batch[name].shape[2:] for name in kept}
        types = {name: batch[name].dtype for name in kept}
        self.nbytes = self.places * sum(
            shape.numel() * types[name].itemsize for name, shape in shapes.items()
        )
        finals = 0
        if self._follows:
            finals = max(4 * first.shape[0] * self.num_env, self.places // 64)
            self.nbytes += 8 * self.places
            self.nbytes += (
                finals * shapes["raw_observation"].numel() * types["raw_observation"].itemsize
            )
        self._check_memory(self.nbytes)
        self._columns = {
            name: torch.zeros(self.places, *shape, dtype=types[name], device=device)
            for name, shape in shapes.items()
        }
        self._begin = self._end = 0  # steps since the beginning: those kept are from begin to end
        if not self._follows:
            return
        self._after = torch.full((self.places,), _GOES_ON, device=device)  # int64
        # One more, where a GPU puts what is not kept.
        self._finals = self._columns["raw_observation"].new_zeros(
            finals + 1, *shapes["raw_observation"]
        )
        self._next_final = torch.zeros((), dtype=torch.int64, device=device)
        self._finals_used = 0  # at most
        powers = torch.tensor([gamma**m for m in range(n_step + 1)], dtype=torch.float64)
        self._discounts = powers.float().to(device)
        self._offsets = (torch.arange(n_step, device=device) * self.num_env).unsqueeze(-1)

    def _check_memory(self, more: int) -> None:
        """Raises RoleError where there are not so many bytes more."""
        capacity = self._capacity * self.num_env
        if self.device.type == "cuda":
            free, has = torch.cuda.mem_get_info(self.device)[0], "the GPU"
        else:
            memory = host_memory()
            free, has = memory.free_bytes, memory.whose
        if more > free:
            fits = capacity * free // more
            other = ", replay_device: cpu" if self.device.type == "cuda" else ", fewer GMIs"
            raise RoleError(
                f"algorithm.replay_capacity={capacity}; the replay needs {more:,} bytes more "
                f"({more // self.places:,} a step), and {has} has {free:,} free. Use "
                f"{fits:,} or fewer{other}, or a machine with more."
            )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows(self) -> range:
        """The rows that are kept, counted since the beginning; row r lies at r % places."""
        return range(self._begin * self.num_env, self._end * self.num_env)

    def put(self, batch: Batch) -> int:
        """Writes a batch [T, N] behind the newest step, over the oldest ones; returns its rows."""
        steps, num_env = next(iter(batch[name] for name in self._columns)).shape[:2]
        if num_env != self.num_env:
            raise ValueError(f"a batch of {num_env} environments; the replay has {self.num_env}")
        first = max(0, steps - self._capacity)  # the newest that fit
        if first:
            self.clear(self._end + first)
        at = range(self._end, self._end + steps - first)
        if self._follows:
            self._end_what_does_not_go_on(batch)
            self._write(self._after, self._what_follows(batch, first), at)
            # What the newest step led to, where the next one will write the same.
            head = range(at.stop, at.stop + 1)
            self._write(self._columns["raw_observation"], batch["next_observation"][-1:], head)
            self._write(
                self._after, torch.full_like(self._after[: self.num_env], _GOES_ON)[None], head
            )
        for name, column in self._columns.items():
            self._write(column, batch[name][first:], at)
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
            for slots, _ in self._pieces(range(end, self._end)):
                self._after[slots] = _GOES_ON
            newest = self._after[self._step(end - 1)]
            newest.masked_fill_(newest == _GOES_ON, _NEWEST)
        self._end = end

    def clear(self, end: int = 0) -> None:
        """Forgets all rows; `end`: where the next step is counted from."""
        self._begin = self._end = end
        if self._follows:
            self._after.fill_(_GOES_ON)

    def gather(self, places: Tensor) -> Batch:
        """Returns the rows at some places [B] as a minibatch, copied."""
        rows = {
            name: column.index_select(0, places)
            for name, column in self._columns.items()
            if name in self._names
        }
        if self._follows:
            rows |= self._transitions(places, rows.get("reward"))
        # Bytes are for networks to compute with.
        return Batch({n: c.float() if c.dtype == torch.uint8 else c for n, c in rows.items()})

    def _transitions(self, places: Tensor, reward: Tensor | None) -> dict[str, Tensor]:
        if self._n_step > 1:
            window = (places + self._offsets) % self.places  # [n, B]
            after = self._after.take(window)
            ends = (after != _GOES_ON).cumsum(0)
            # Up to the first that nothing follows, itself included.
            counts = torch.ones_like(ends, dtype=torch.bool)
            counts[1:] = ends[:-1] == 0
            rewards = self._columns["reward"].take(window)
            reward = (rewards * counts * self._discounts[:-1, None]).sum(0)
            number = counts.sum(0)
            newest = (number - 1).unsqueeze(0)
            last, after = window.gather(0, newest)[0], after.gather(0, newest)[0]
            discount = self._discounts.take(number)
        else:
            last, after = places, self._after.index_select(0, places)
            discount = self._discounts[1:].expand(len(places))
        made: dict[str, Tensor] = {} if reward is None else {"reward": reward}
        ended = after >= 0
        made["discount"] = discount.masked_fill(ended & (after & 1).bool(), 0.0)
        if "next_observation" in self._names:
            following = (last + self.num_env) % self.places
            seen = self._columns["raw_observation"].index_select(0, following)
            slots = len(self._finals) - 1
            if self._static:
                final = self._finals.index_select(0, after.clamp(min=0) // 2 % slots)
                seen = torch.where(_beside(ended, seen), final, seen)
            elif len(which := ended.nonzero().squeeze(-1)):
                seen[which] = self._finals[after[which] // 2 % slots]
            made["next_observation"] = seen
        return made

    def whose(self, place: int) -> tuple[int, int]:
        """Returns the environment of the row at a place, and its step since the beginning."""
        slot, env = divmod(place, self.num_env)
        return env, self._end - 1 - (self._end - 1 - slot) % self._slots

    # What follows rows ------------------------------------------------------------------------

    def _what_follows(self, batch: Batch, first: int) -> Tensor:
        """Returns what follows each row from step `first` on; keeps what episodes ended with."""
        done, over = batch["done"][first:].bool(), batch[self._over][first:].bool()
        done, over = done.to(self.device), over.to(self.device)
        number = self._keep(done.flatten(), batch["next_observation"][first:].flatten(0, 1))
        after = torch.where(done, 2 * number.view_as(done) + over, _GOES_ON)
        after[-1].masked_fill_(after[-1] == _GOES_ON, _NEWEST)
        return after

    def _end_what_does_not_go_on(self, batch: Batch) -> None:
        """Has the newest rows go on in the batch, or end with what was seen where they do not."""
        if self._begin == self._end:
            return
        newest = self._after[self._step(self._end - 1)]
        led_to = self._columns["raw_observation"][self._step(self._end)]
        seen = batch["raw_observation"][0].to(led_to)
        cut = (newest == _NEWEST) & (seen != led_to).flatten(1).any(1)
        number = self._keep(cut, led_to)
        newest.copy_(torch.where(newest == _NEWEST, _GOES_ON, newest))
        newest.copy_(torch.where(cut, 2 * number, newest))

    def _keep(self, which: Tensor, observations: Tensor) -> Tensor:
        """Keeps those observations [M, D] that `which` [M] says; returns the numbers they get."""
        rows = None if self._static else which.nonzero().squeeze(-1)
        self._make_room(len(which if rows is None else rows))
        number = self._next_final + which.cumsum(0) - 1
        self._next_final = self._next_final + which.sum()
        slots = len(self._finals) - 1
        if rows is None:
            where = torch.where(which, number % slots, slots)
            self._finals.index_copy_(0, where, observations.to(self._finals))
        elif len(rows):
            taken = observations[rows.to(observations.device)].to(self._finals)
            self._finals[number[rows] % slots] = taken
        return number

    def _make_room(self, count: int) -> None:
        """Makes sure that as many observations more can be kept; waits for the device at times."""
        slots = len(self._finals) - 1
        self._finals_used += count
        if self._finals_used <= slots:
            return
        numbers, end = self._after[self._after >= 0] // 2, int(self._next_final)
        begin = int(numbers.min()) if len(numbers) else end
        self._finals_used = end - begin + count
        if 4 * self._finals_used > 3 * slots:  # so that it is seldom looked for
            size = 2 * self._finals_used
            self._check_memory(size * self._finals[0].numel() * self._finals.itemsize)
            larger = self._finals.new_zeros(size + 1, *self._finals.shape[1:])
            kept = torch.arange(begin, end, device=self.device)
            larger[kept % size] = self._finals[kept % slots]
            self._finals = larger

    # The ring ---------------------------------------------------------------------------------

    def _step(self, step: int) -> slice:
        """Returns the places of a step."""
        slot = step % self._slots
        return slice(slot * self.num_env, (slot + 1) * self.num_env)

    def _pieces(self, steps: range) -> Iterator[tuple[slice, slice]]:
        """Yields the places of steps in a row, and where these lie in them: in two at most."""
        done = 0
        while done < len(steps):
            slot = (steps.start + done) % self._slots
            count = min(len(steps) - done, self._slots - slot)
            yield (
                slice(slot * self.num_env, (slot + count) * self.num_env),
                slice(done, done + count),
            )
            done += count

    def _write(self, column: Tensor, values: Tensor, steps: range) -> None:
        for places, part in self._pieces(steps):
            column[places].copy_(values[part].flatten(0, 1))

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns what is kept; the memory itself where the ring has been round."""
        used = (self._end + 1) * self.num_env
        columns = dict(self._columns)
        if self._follows:
            columns["after"] = self._after
        state: dict[str, Any] = {
            "columns": {  # a view would be saved with all of its memory
                name: column[:used].clone() if used < self.places else column
                for name, column in columns.items()
            },
            "slots": self._slots, "num_env": self.num_env, "begin": self._begin, "end": self._end,
        }  # fmt: skip
        if self._follows:
            state |= {"finals": self._finals, "next_final": self._next_final}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on as the one that gave it; of another capacity, with the newest rows that fit."""
        mine = dict(self._columns)
        if self._follows:
            mine["after"] = self._after
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
        if slots == self._slots:
            for name, column in mine.items():
                column[: len(saved[name])].copy_(saved[name])
        else:
            steps = range(begin, end + 1)
            for name, column in mine.items():
                ring = saved[name].view(-1, self.num_env, *column.shape[1:])
                for at, part in self._pieces(steps):
                    those = torch.arange(steps.start, steps.stop)[part] % slots
                    column[at].copy_(ring[those].flatten(0, 1))
        self._begin = begin
        if self._follows:
            self._finals = state["finals"].to(self.device, copy=True)
            self._next_final = state["next_final"].to(self.device, copy=True)
            self._finals_used = len(self._finals)  # it is counted when more is kept


def _beside(mask: Tensor, rows: Tensor) -> Tensor:
    """Returns a mask [B] in the shape that it masks rows [B, ...] by."""
    return mask.view(-1, *[1] * (rows.ndim - 1))


def _described(columns: Mapping[str, Tensor]) -> str:
    return ", ".join(
        f"{name} {list(column.shape[1:])} of {str(column.dtype).removeprefix('torch.')}"
        for name, column in sorted(columns.items())
    )
