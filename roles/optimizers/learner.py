"""The one place that differentiates: an algorithm's updates, together with the other trainers.

A batch is postprocessed with the moments of all trainers, cut into minibatches, and each
minibatch's gradient is reduced before a step. With equal minibatches on k GMIs that step is the
step of one GMI on the joined minibatch. On a GPU an update is queued without waiting for the
device; `stats` reads what came of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.roles.algorithms.algorithm import Algorithm, Losses, checked
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.graphs import Pool, static_on
from gmi_drl.roles.policies.policy_map import PolicyMap
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.minibatch import Minibatch
from gmi_drl.roles.seeds import DRAWS, seed_of
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.runtime.process.progress import beat

from .gradient_step import GradientStep, Together, meet_timed


class Learner:
    """Updates an algorithm's policy from batches, together with the trainers it is connected to.

    `batch`: what every `update` is given, where its tensors stay the same. Unless the algorithm
    takes whole segments, minibatches are then cut by a shuffle of its rows, or of its environments
    where the policy remembers. `generator` draws minibatches, and is this trainer's own.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        generator: torch.Generator,
        batch: Batch | None = None,
        *,
        pool: Pool | None = None,
        capture_loss: bool = True,
        static: bool | None = None,
        shards: Sequence[Shard] = (),
        dropped: int = 0,
    ) -> None:
        """`shards`: the parts that the batch is joined of, each with the order of its own rows.

        `dropped`: the number of trainers that are left out of each update; `leave_out` says which.
        `static`: work as on a GPU, on any device (None: on all devices but the CPU). `pool`: where
        that work is captured, when it is first done after `connect`; None: it is not captured.
        `capture_loss`: whether the loss may be captured too.
        """
        self.algorithm, self.generator, self._batch = algorithm, generator, batch
        self._settings, normalizers = algorithm.settings, algorithm.normalizers
        self._minibatches: int = getattr(self._settings, "minibatches", 1)
        self._epochs: int = getattr(self._settings, "epochs", 1)
        self._observations, self._values = normalizers.observations, normalizers.values
        device = next(algorithm.policy.network.parameters()).device
        self._device, self._pool, self._static = device, pool, static_on(device, static)
        self.clock = Clock(device)  # the seconds of reductions as "reduce", of the rest as "train"
        capture = pool if capture_loss and algorithm.capturable else None
        self._by_rows = batch is not None and not algorithm.whole_segments
        # Where the agents of its one policy come and go, a rank counts by the rows that it has of
        # them; an algorithm of several policies sees to that itself.
        self._weighs_rows = (
            self._by_rows and batch is not None and "present" in batch.columns
            and not isinstance(algorithm.policy, PolicyMap)
        )  # fmt: skip
        self._step = GradientStep(
            algorithm, self.clock, static=static, pool=capture, dropped=dropped,
            weighs_rows=self._weighs_rows,
        )  # fmt: skip
        self._is_left_out = False
        self.parameters, self.descent = self._step.parameters, self._step.descent
        self.noise = self._step.noise
        self._postprocessing: Together | None = None
        self._held: Batch | None = None  # a minibatch, at addresses that captured work can rely on
        self._num_observed = 0 if self._observations is None else self._observations.num_moments
        self._shards = list(shards)
        self._agents: AgentOrder | None = None
        if batch is not None and self._by_rows:
            self._shuffle(batch)
        self.updates = 0

    def _shuffle(self, batch: Batch) -> None:
        """Allocates a row order and one minibatch, at addresses that captured work can rely on."""
        self._minibatch = minibatch = Minibatch(batch, self._minibatches)
        self._order = torch.zeros(minibatch.pieces, dtype=torch.int64, device=self._device)
        size = minibatch.size
        if (present := batch.columns.get("present")) is not None:
            policy, width = self.algorithm.policy, present.shape[1]
            groups = policy.rows(width) if isinstance(policy, PolicyMap) else [slice(0, width)]
            self._agents = AgentOrder(present, groups, self._minibatches)
        self._picks = [self._order[i * size : (i + 1) * size] for i in range(self._minibatches)]
        self._loss = lambda: self._checked(minibatch.batch)

    def connect(self, group: Group) -> None:
        """Make the buckets that trainers meet in; again after the group was re-formed."""
        self.close()
        self.clock.clear()
        self._step.connect(group)
        algorithm, num_observed = self.algorithm, self._num_observed
        numel = algorithm.num_batch_moments if self._by_rows else algorithm.num_update_moments
        numel += num_observed + int(self._weighs_rows)
        self._moments: SharedMoments | None = None
        if numel:
            by_sum = self._static and self._by_rows
            self._moments = SharedMoments(group, numel, self._device, by_sum)
        self._observed = torch.zeros(num_observed, dtype=torch.float64, device=self._device)
        self._no_moments = torch.zeros(group.size, 0, dtype=torch.float64, device=self._device)
        postprocesses = type(algorithm).postprocess is not Algorithm.postprocess
        if self._by_rows and (postprocesses or self._moments is not None):
            batch = self._batch
            assert batch is not None
            self._postprocessing = Together(
                self._measure, self._gather, self._postprocess,
                alone=group.size == 1 or self._moments is None,
                keep=[*algorithm.changed(batch), *self._step.weights],
                clock=self.clock, pool=self._pool if algorithm.capturable else None,
                name="what a batch is trained towards",
            )  # fmt: skip

    def close(self) -> None:
        """Let captured work go; it waits for what is queued."""
        if self._postprocessing is not None:
            self._postprocessing.close()
        self._step.close()

    def anneal(self, progress: float) -> None:
        """Set the learning rate for `progress`, the share of all steps that is done: 0 to 1."""
        if self._settings.anneals:
            self.descent.learning_rate = self._settings.learning_rate * max(1.0 - progress, 0.0)

    def leave_out(self, is_left_out: bool) -> None:
        """Says whether this trainer's batch is left out, as the batches of `dropped` trainers are.

        It takes the same steps as the others.
        """
        self._is_left_out = is_left_out
        self._step.weigh(is_left_out)

    def update(self, batch: Batch) -> None:
        """Train on a batch for all epochs; collective. On a GPU the work is queued."""
        beat("update")
        self.clock.begin("train")
        if self._by_rows:
            self._update_by_rows()
        else:
            self._update_by_segments(batch)
        self.clock.stop()

    def _update_by_rows(self) -> None:
        if self._postprocessing is not None:
            self._postprocessing()
        rows = self._minibatch.batch.rows
        assert rows is not None
        self.noise.begin(len(rows))
        for _ in range(self._epochs):
            self._draw()
            for pick in self._picks:
                beat()
                # Not captured with the rest: one launch either way, and rows may lie anywhere.
                self._minibatch.fill(pick)
                self._step.repeat(self._loss)
                self._after_step()
            self.noise.end()  # later epochs have fitted these samples
        if self._observations is not None:
            # Only now: this batch was seen through the old statistics.
            self._observations.update(self._observed)

    def _draw(self) -> None:
        """Draw the order of an epoch: minibatch i has minibatch i of every shard."""
        if self._agents is not None:
            self._agents.draw(self.generator, self._order)
            return
        if not self._shards:
            torch.randperm(len(self._order), generator=self.generator, out=self._order)
            return
        assert self._batch is not None
        width, count = self._batch["reward"].shape[1], len(self._picks)
        orders, first_env = [], 0
        for shard in self._shards:
            orders.append(shard.rows(first_env, width).view(count, -1))
            first_env += shard.num_env
        torch.cat(orders, 1, out=self._order.view(count, -1))

    def _update_by_segments(self, batch: Batch) -> None:
        if (present := batch.columns.get("present")) is not None and not bool(present.all()):
            raise RoleError(
                f"{type(self.algorithm).__name__} learns from whole segments, and an agent has "
                "left while others go on, or they take turns; agents of segments must come and "
                "go together. Leave whole_segments out and have `losses` take rows, or use "
                "algorithm.name: ppo."
            )
        segments = batch.segments(self._observations, self.algorithm.segment_fields)
        first_epoch: list[Losses] = []
        self.noise.begin(segments["reward"].numel() // self._minibatches)
        for epoch in range(self._epochs):
            for minibatch in self._cut(segments):
                # The targets are those of the policy as it is by now, each time.
                losses = self.step(minibatch)
                if epoch == 0:
                    first_epoch.append(losses)
            self.noise.end()
        self.observe(batch, first_epoch)

    def _cut(self, segments: Batch) -> Iterator[Batch]:
        """Yields the minibatches of an epoch, which are environments with all their steps."""
        count, width = self._minibatches, segments["reward"].shape[1]
        size, remainder = divmod(width, count)
        if remainder or not size:
            raise ValueError(
                f"{width} environments in a batch: {count} minibatches must divide them. "
                "Change algorithm.minibatches, env.num_env or experience.batch_segments."
            )
        if count == 1:
            yield segments.with_observations()
            return
        order = torch.randperm(width, generator=self.generator, device=self.generator.device)
        for environments in order.view(count, size).unbind():
            yield segments.environments(environments).with_observations()

    def step(self, minibatch: Batch) -> Losses:
        """Takes one step down the loss of a minibatch and returns the losses; collective.

        It counts for the noise scale after `noise.begin`.
        """
        beat("update")
        losses = self._checked(minibatch)
        self._step.take(losses)
        self._after_step()
        return losses

    def repeat(self, minibatch: Batch) -> Mapping[str, Tensor]:
        """Takes one step as `step` does, on minibatches with the same columns and shapes.

        It is captured where there is a pool. Returns `Losses.extras`, valid until the next call.
        """
        if self._pool is None:
            return self.step(minibatch).extras
        beat("update")
        if self._held is None:
            self._held = Batch({name: column.clone() for name, column in minibatch.columns.items()})
        held, names = self._held, list(minibatch.columns)
        torch._foreach_copy_([held[name] for name in names], [minibatch[name] for name in names])
        extras = self._step.repeat(lambda: self._checked(held), self.algorithm.loss_kind)
        self._after_step()
        return extras

    def apply(self, gradient: Tensor, losses: Tensor) -> None:
        """Takes one step down a gradient [n] from elsewhere, in a learner without peers.

        `losses`: what its loss reports, in the order of `stats`.
        """
        beat("update")
        self._step.apply(gradient, losses)
        self._after_step()

    def apply_with(self, gradient: Tensor, losses: Tensor, moments: Tensor) -> None:
        """Take one step as `apply` does, with the moments [m] of the batch of that gradient.

        The moments of the algorithm come first, then those of the observations.
        """
        self.algorithm.learn_batch_moments(moments[None, : self.algorithm.num_batch_moments])
        self.apply(gradient, losses)
        self.learn_observations(moments[None])

    def learn_observations(self, everyone: Tensor) -> None:
        """Updates the observation normaliser by everyone's moments [k, m], as for `apply_with`."""
        if self._observations is not None:
            observed = everyone[:, self.algorithm.num_batch_moments :]
            self._observations.update(self._observations.merged(observed))

    def observe(self, batch: Batch, first_epoch: Sequence[Losses] = ()) -> None:
        """Merge what all trainers saw in a batch into the observation normaliser; collective.

        With the losses of an update's first epoch, what the algorithm measures of it is merged too.
        """
        moments, num_own = self._moments, self.algorithm.num_update_moments
        if moments is None:
            return
        if num_own and first_epoch:
            self.algorithm.measure_update(first_epoch, moments.mine[:num_own])
        if self._observations is not None:
            self._observations.measure(batch["raw_observation"], moments.mine[num_own:])
        meet_timed(self._gather, self.clock)
        if num_own and first_epoch:
            self.algorithm.learn_moments(moments.everyone[:, :num_own])
        if self._observations is not None:
            self._observations.update(self._observations.merged(moments.everyone[:, num_own:]))

    def stats(self) -> dict[str, float | None]:
        """Returns the `GradientStep.means` of the last update; they may not be finite."""
        return self._step.means()

    def _checked(self, minibatch: Batch) -> Losses:
        return checked(self.algorithm, self.algorithm.losses(minibatch))

    def _after_step(self) -> None:
        self.updates += 1
        self.algorithm.after_step(self.updates)

    def _measure(self) -> None:
        batch, moments, num_own = self._batch, self._moments, self.algorithm.num_batch_moments
        assert batch is not None
        if moments is None:
            return
        moments.clear()
        self.algorithm.measure(batch, moments.mine[:num_own])
        present = batch.columns.get("present")
        if self._observations is not None:
            observed = moments.mine[num_own : num_own + self._num_observed]
            self._observations.measure(batch["raw_observation"], observed, present)
        if self._weighs_rows:
            assert present is not None
            moments.mine[-1:].copy_(present.sum())

    def _gather(self) -> None:
        if self._moments is not None:
            if self._is_left_out:
                self._moments.mine.zero_()  # as of a batch without rows
            self._moments.gather()

    def _postprocess(self) -> None:
        num_own = self.algorithm.num_batch_moments
        everyone = self._no_moments if self._moments is None else self._moments.everyone
        assert self._batch is not None
        self.algorithm.learn_batch_moments(everyone[:, :num_own])
        self.algorithm.postprocess(self._batch, everyone[:, :num_own])
        if self._observations is not None:
            observed = everyone[:, num_own : num_own + self._num_observed]
            self._observed.copy_(self._observations.merged(observed))
        if self._weighs_rows:
            self._step.weigh_rows(everyone[:, -1])

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that all trainers share (their generators are their own).

        Partly the tensors themselves: copy or write it before training goes on.
        """
        algorithm_state = self.algorithm.state_dict()
        return {
            "parameters": self.parameters.packed(self.parameters.data.detach()),
            "optimizer": self.descent.state_dict(),
            "observation_normalizer": self._observations and self._observations.state_dict(),
            "value_normalizer": self._values and self._values.state_dict(),
            "updates": self.updates,
            "noise_scale": self.noise.scale.state_dict(),
            **({"algorithm": algorithm_state} if algorithm_state else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads `state` into the tensors in use, so that captured work stays valid.

        The same normalisers must be on as in the learner that gave it.
        """
        with torch.no_grad():
            self.parameters.unpack(state["parameters"], self.parameters.data)
        self.descent.load_state_dict(state["optimizer"])
        if self._observations is not None:
            self._observations.load_state_dict(state["observation_normalizer"])
        if self._values is not None:
            self._values.load_state_dict(state["value_normalizer"])
        self.updates = state["updates"]
        self.noise.scale.load_state_dict(state["noise_scale"])
        if "algorithm" in state:
            self.algorithm.load_state_dict(state["algorithm"])


class Shard:
    """The environments of a batch that one evaluator has sampled, and the order of their rows.

    Where the policy remembers, a row is an environment with all its steps, and `steps` is 1.
    """

    def __init__(self, steps: int, num_env: int, generator: torch.Generator) -> None:
        self.num_env = num_env
        self._steps, self._generator = steps, generator

    @classmethod
    def of(cls, steps: int, num_env: int, seed: int, rank: int) -> Shard:
        """Returns the shard of evaluator `rank`, whose order is the same wherever it is drawn."""
        generator = torch.Generator().manual_seed(seed_of(seed, rank, DRAWS))
        return cls(steps, num_env, generator)

    def rows(self, first: int = 0, width: int | None = None) -> Tensor:
        """Draws the order of an epoch, as rows of a batch of `width` environments (its own alone).

        `first`: where in that batch its environments begin.
        """
        count = self._steps * self.num_env
        order = torch.randperm(count, generator=self._generator)
        if width is None:
            return order
        return order // self.num_env * width + first + order % self.num_env


class AgentOrder:
    """Draws the order of the rows of agents that come and go, T steps of N rows.

    Minibatch i has part i of every group's rows, of those alone whose agent is present. These
    repeat in place of the others: all of them equally often, or some once more.
    """

    def __init__(self, present: Tensor, groups: Sequence[slice], parts: int) -> None:
        """`present` [T, N] bool is read at each draw; `groups`: which of the N are of each."""
        self._present, self._groups, self._parts = present, groups, parts
        self._numbers = torch.arange(present.numel(), device=present.device)

    def draw(self, generator: torch.Generator, out: Tensor) -> None:
        """Writes an order of rows into `out` [T * N]; waits for no device."""
        orders, width = [], self._present.shape[1]
        for group in self._groups:
            present = self._present[:, group].reshape(-1)
            keys = torch.rand(present.shape, generator=generator, device=present.device)
            order = (keys + ~present).argsort()  # those that are there come first
            order = order[self._numbers[: len(order)] % present.sum().clamp(min=1)]
            size = group.stop - group.start
            row = order // size * width + group.start + order % size
            orders.append(row.view(self._parts, -1))
        torch.cat(orders, 1, out=out.view(self._parts, -1))


class SharedMoments:
    """A bucket of `numel` float64 numbers: `mine` [numel] to write, `everyone` [k, numel] to read.

    `by_sum`: on a GPU they are gathered by a sum in which each rank adds zeros to all rows but its
    own, as strategy ipc can reduce without the host, and gathers through it.
    """

    def __init__(self, group: Group, numel: int, device: torch.device, by_sum: bool) -> None:
        self._by_sum = by_sum and group.size > 1
        rows = group.size if self._by_sum else 1
        self._bucket = group.bucket("moments", rows * numel, torch.float64, device)
        if self._by_sum:
            self.mine = self._bucket.buffer.view(rows, numel)[group.rank]
            self.everyone = self._bucket.result.view(rows, numel)
        else:
            self.mine = self._bucket.buffer
            self.everyone = torch.zeros(group.size, numel, dtype=torch.float64, device=device)

    def clear(self) -> None:
        """Clears `mine`; to be called before it is written."""
        if self._by_sum:
            self._bucket.buffer.zero_()

    def gather(self) -> None:
        """Fill `everyone`; collective."""
        if self._by_sum:
            self._bucket.reduce("sum")
        else:
            self.everyone.copy_(self._bucket.gather())
