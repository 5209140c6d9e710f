"""Sources of minibatches: replay buffers, from which rows are drawn again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Protocol

import torch
from torch import Tensor

from gmi_drl.placement import ReplayConfig
from gmi_drl.roles.envs.protocol import Stacking
from gmi_drl.roles.errors import PriorityError
from gmi_drl.roles.samples.batch import Batch

from .limiter import Limiter
from .samplers import PrioritizedSampler, Sampler, UniformSampler
from .sequences import SequenceStorage
from .storage import Storage


class Source(Protocol):
    """Gives an optimizer its minibatches, drawn from the batches that are put in."""

    def put(self, batch: Batch) -> None:
        """Takes in a batch [T, N], whose memory may be overwritten afterwards."""

    def ready(self) -> bool:
        """Tells whether a minibatch is due, alike in all GMIs that put in as many rows."""

    def next(self) -> tuple[Batch, Tensor]:
        """Draws a minibatch [B], and the keys [B] of its rows, valid until the next `put`."""

    def feedback(self, keys: Tensor, priorities: Tensor | None) -> None:
        """Learns the priorities [B] of rows that were drawn, where a loss gives them."""


_AHEAD_BYTES: Final = 4 << 20  # of rows that are gathered at once, so that they fit into caches


class ReplayBuffer:
    """A storage, whose rows a sampler draws when a limiter says so.

    Minibatches lie on the device of `generator`. They have the columns of the storage, and `weight`
    [B] where the sampler gives one. Where draws do not depend on priorities, all minibatches that
    are due are gathered at once, and cut.
    """

    fits_model: ClassVar[bool] = False  # whether a model is trained on its rows

    def __init__(
        self,
        storage: Storage,
        sampler: Sampler,
        limiter: Limiter,
        batch_size: int,
        generator: torch.Generator,
    ) -> None:
        self._storage, self._sampler, self.limiter = storage, sampler, limiter
        self.batch_size, self._generator = batch_size, generator
        self._gathered: list[tuple[Batch, Tensor]] = []  # minibatches to come, the next one last

    @classmethod
    def of(
        cls,
        settings: ReplayConfig,
        batch: Batch,
        columns: Sequence[str],
        generator: torch.Generator,
        stacking: Stacking | None = None,
        in_turn: bool = True,
    ) -> ReplayBuffer:
        """Returns the replay of an algorithm's settings; the rest is as for `Storage`.

        It keeps sequences where the policy that sampled `batch` remembers.
        """
        device = generator.device if settings.replay_device == "policy" else torch.device("cpu")
        options: dict[str, Any] = {
            "n_step": settings.n_step, "gamma": settings.gamma, "stacking": stacking,
            "bootstrap_time_limit": settings.bootstrap_time_limit,
        }  # fmt: skip
        storage_class: type[Storage] = Storage
        if batch.sequences is not None:
            storage_class = SequenceStorage
            options |= {"burn_in": getattr(settings, "burn_in", True), "in_turn": in_turn}
        storage = storage_class(batch, columns, settings.replay_capacity, device, **options)
        sampler: Sampler = UniformSampler(storage.places, device)
        if settings.sampler == "prioritized":
            sampler = PrioritizedSampler(
                storage.places, device, alpha=settings.priority_alpha, beta=settings.priority_beta,
                eps=settings.priority_eps, weights_by=settings.priority_weights,
            )  # fmt: skip
        limiter = Limiter(settings.replay_start, settings.updates_per_row)
        return cls(storage, sampler, limiter, settings.batch_size, generator)

    def __len__(self) -> int:
        return len(self._storage)

    @property
    def observation_width(self) -> int:
        """The width of the observations."""
        return self._storage.observation_width

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the replay."""
        return {"replay_rows": len(self)}

    def anneal(self, progress: float) -> None:
        """Take note of `progress`, the share of all steps that is done: 0 to 1."""
        self._sampler.anneal(progress)

    def put(self, batch: Batch) -> None:
        """Takes a batch [T, N] in, with a column `priority` where agents have given one."""
        self._gathered.clear()
        old_rows = self._storage.rows
        added = self._storage.put(batch)
        rows = self._storage.rows
        self._sampler.drop(range(old_rows.start, min(old_rows.stop, rows.start)))
        new = range(max(old_rows.stop, rows.start), rows.stop)
        priorities = batch.columns.get("priority")
        self._sampler.put(new, None if priorities is None else priorities.flatten()[-len(new) :])
        self.limiter.add(added)

    def take_back(self, rows: int) -> None:
        """Forgets the last `rows` that were put in; the rows that these replaced are lost."""
        self._gathered.clear()
        old_rows = self._storage.rows
        self._storage.take_back(rows)
        self._sampler.drop(range(max(self._storage.rows.stop, old_rows.start), old_rows.stop))

    def ready(self) -> bool:
        return len(self._storage.rows) > 0 and self.limiter.ready()

    def model_is_due(self) -> bool:
        """Tells whether the model is to be trained before the next draw."""
        return False

    def fit_model(self) -> Iterator[None]:
        """Trains the model, if it has rows for that; yields after each part of the work."""
        return iter(())

    def next(self) -> tuple[Batch, Tensor]:
        if not self._gathered:
            self._gathered = self._gather()[::-1]
        self.limiter.drawn += 1
        return self._gathered.pop()

    def _gather(self) -> list[tuple[Batch, Tensor]]:
        """Returns the next minibatches, each with its keys."""
        storage, size, count = self._storage, self.batch_size, 1
        if self._sampler.foresees and storage.rows_are_apart:
            max_count = _AHEAD_BYTES // max(1, storage.row_bytes * size)
            count = max(1, min(self.limiter.waiting, max_count))
        places, weight = self._sampler.draw(count * size, storage.rows, self._generator)
        rows = storage.gather(places, self._generator.device)
        if weight is not None:
            rows.columns["weight"] = weight.to(self._generator.device)
        if count == 1:
            return [(rows, places)]
        columns = {name: torch.split(column, size) for name, column in rows.columns.items()}
        return [
            (Batch({name: parts[index] for name, parts in columns.items()}), keys)
            for index, keys in enumerate(torch.split(places, size))
        ]

    def feedback(self, keys: Tensor, priorities: Tensor | None) -> None:
        self._sampler.update(keys, priorities)
        if self._storage.device.type == "cpu":
            self.check()

    def check(self) -> None:
        """Raises PriorityError if a loss gave an invalid priority; waits for the device."""
        if (bad := self._sampler.bad()) is not None:
            place, priority = bad
            env_index, step = self._storage.whose(place)
            raise PriorityError(priority, env_index, step)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the storage and of the sampler."""
        storage = self._storage
        return {"storage": storage.state_dict(), "sampler": self._sampler.state_dict(storage.rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads `state`; of another capacity, the newest rows that fit."""
        self._gathered.clear()
        old_rows = self._storage.rows
        self._storage.load_state_dict(state["storage"])
        self._sampler.drop(old_rows)
        self._sampler.load_state_dict(state["sampler"], self._storage.rows)
