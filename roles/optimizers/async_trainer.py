"""The trainer of asynchronous training: batches of segments in, versions of a policy out.

Trainers meet as co-located ones do: in each minibatch's gradient, and once an iteration. The first
one publishes the policy on the board after every update.

No segment is trained on twice, or lost silently. A batch's slots are given back to the agents only
when it is certain that its update stays: with several trainers, when all have begun the next
iteration. Until then whoever is killed finds it again, and who must go back an iteration, because
another one had not finished it, trains on it again. Which segments are in the policy, of each
agent and by each trainer, is part of the state that a trainer takes over from its peers, and of a
checkpoint. What a trainer without peers had trained on since its last checkpoint is lost with it,
and counted as missing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from gmi_drl.comm.errors import LinkTimeout
from gmi_drl.comm.experience import BatchCounts, Batcher, ExperienceBatch
from gmi_drl.comm.shm.board import BoardWriter
from gmi_drl.placement import AlgorithmConfig, counted
from gmi_drl.roles.algorithms.async_loss import LOSSES, AsyncLossParts
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.policy import ActorCritic, FlatParameters
from gmi_drl.roles.role.host import FATES
from gmi_drl.roles.samples.segments import Batch as Minibatch
from gmi_drl.roles.samples.segments import Segments
from gmi_drl.roles.telemetry.async_progress import AsyncProgress, Marks
from gmi_drl.roles.telemetry.phases import phase

from .async_learner import AsyncLearner
from .training import Training


class AsyncLearned:
    """What all trainers hold alike, and which segments are in it."""

    def __init__(self, learner: AsyncLearner, progress: AsyncProgress, session: str) -> None:
        self._learner, self._progress, self._session = learner, progress, session
        self.marks: dict[int, Marks] = {}  # by trainer, by agent
        self.ahead = 0  # of the versions on the board before the learner's

    @property
    def version(self) -> int:
        """The policy's number on the board: higher with each update, also after a step back."""
        return self._learner.version + self.ahead

    def state_dict(self) -> dict[str, Any]:
        marks = {
            trainer: {agent: list(mark) for agent, mark in its.items()}
            for trainer, its in self.marks.items()
        }
        return self._learner.state_dict() | {
            "episodes": self._progress.state_dict(),
            "marks": marks,
            "ahead": self.ahead,
            "session": self._session,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._learner.load_state_dict(state)
        self._progress.load_state_dict(state["episodes"])
        self.marks, self.ahead = {}, 0
        if state["session"] == self._session:  # else the links are others, and the board is empty
            self.ahead = state["ahead"]
            self.marks = {
                trainer: {agent: tuple(mark) for agent, mark in its.items()}
                for trainer, its in state["marks"].items()
            }


class AsyncTrainer(Training):
    """IMPALA or A3C on segments from agents. Override `make_policy` or `loss` to change it."""

    _learned: AsyncLearned

    def loss(
        self,
        policy: ActorCritic,
        batch: Minibatch,
        values: RunningNormalizer | None,
        settings: AlgorithmConfig,
    ) -> AsyncLossParts:
        """The loss of one minibatch; see `gmi_drl.roles.algorithms.async_loss.AsyncLoss`."""
        return LOSSES[settings.name](policy, batch, values, settings)

    # The loop ------------------------------------------------------------------------------

    def _setup(self) -> None:
        config, context = self.mgr.config, self.mgr.context
        algorithm, experience = config.algorithm, config.experience
        with self.mgr.closed_after(self.make_env(1, seed=4)) as env:  # for its spaces
            self._policy, self._normalizers = self._build_policy(env)
        self._own = torch.Generator(context.device).manual_seed(self.mgr.seed(1))
        self._learner = AsyncLearner(
            self._policy, self._normalizers, algorithm, self._own, self.loss
        )
        samples = algorithm.horizon * config.env.num_env
        self._progress = AsyncProgress(self.mgr.layout, samples)
        self._learned = AsyncLearned(self._learner, self._progress, context.session)
        self._steps_per_iteration = samples * experience.batch_segments * self.group.size
        receivers = {
            agent: link.receiver(self.mgr.timeout)
            for agent, link in context.wires.into(self.GMI_id).items()
        }
        for receiver in receivers.values():
            receiver.pin(context.device)
        self._batcher = Batcher(
            receivers,
            experience.batch_segments,
            experience.max_policy_lag,
            self.mgr.timeout,
            device=None if context.device.type == "cpu" else context.device,
        )
        self._resumed = False
        self._held: deque[tuple[int, ExperienceBatch]] = (
            deque()
        )  # not given back, and of which iteration
        self._told = BatchCounts()
        self._writer: BoardWriter | None = None
        if self.group.rank == 0:
            assert context.wires.board is not None
            self._writer = context.wires.board.writer()
        self._vector = torch.zeros(self._learner.published.numel, device=context.device)

    def _connect(self) -> None:
        self._learner.connect(self.group)
        self._progress.connect(self.group)
        while self._held and self._held[0][0] <= self._iteration:
            self._batcher.done(self._held.popleft()[1])  # what is left is to be trained on again
        if not self._resumed:
            marks = self._learned.marks.get(self.GMI_id, {})
            self._batcher.resume(marks)
            self._resumed = True
            self._count_undone(marks)
        newest = -1 if self._writer is None else self._writer.version()
        newest = self.group.exchange(newest + 1)[0] - 1
        if self._learned.version <= newest:
            self._learned.ahead += newest + 1 - self._learned.version
        self._publish()

    def _count_undone(self, marks: Marks) -> None:
        """Count what a process before this one had settled, and the state that goes on has not."""
        tally, known = self.mgr.tally, sum(sum(mark[2:]) for mark in marks.values())
        undone = tally[self.GMI_id, "settled"] - known
        tally[self.GMI_id, "settled"] = known
        if undone > 0:
            tally[self.GMI_id, "undone"] += undone
            self._warn(
                f"gmi {self.GMI_id}: {counted(undone, 'segment')} of its training after the "
                "last checkpoint lost (run.checkpoint_every)"
            )

    def _count_settled(self) -> None:
        now = self._batcher.counts()
        settled = now.trained + now.stale + now.incomplete + now.missing
        self.mgr.tally[self.GMI_id, "settled"] = settled

    def _publish(self) -> None:
        if self._writer is not None:
            self._learner.published.write(self._vector)
            self._writer.publish(self._learned.version, self._vector)

    def _iterate(self) -> None:
        start = perf_counter()
        with phase("wait"):
            batch = self._next_batch()
            there = self.group.exchange(int(batch is not None))
        if not all(there):
            self._stopped = self._finished = True  # one was asked to, and has no experience
            return
        assert batch is not None
        begun = perf_counter()
        self._learner.anneal(self._steps / self.mgr.config.run.total_steps)
        version = self._learned.version
        seen = batch.columns["observation"]  # of bytes where the environment has images
        columns = {**batch.columns, "observation": seen.to(torch.float32)}
        segments = Segments.of_columns(columns, batch.per_segment)
        with phase("train"):
            stats, reduce_s = self._learner.update(segments)
        if self._held[0][1] is not batch:  # all trainers are past the iteration before
            self._batcher.done(self._held.popleft()[1])
        marks = self._batcher.trained(batch)
        phases = (begun - start, perf_counter() - begun - reduce_s, reduce_s)
        agreed = self._progress.agree(
            batch, version, phases, self._counts(batch), marks, self.mgr.stop_requested()
        )
        self._learned.marks = agreed.marks
        self._stopped = agreed.stop
        self._iteration += 1
        self._steps += self._steps_per_iteration
        if self.group.size == 1:
            self._batcher.done(self._held.popleft()[1])
        self._count_settled()
        self._publish()
        self._warn_of_losses()
        self._conclude(agreed.metrics | stats, agreed.gmi_seconds)
        self._check_identical_when_due()

    def _next_batch(self) -> ExperienceBatch | None:
        """What this iteration trains on: a batch it has begun before, or the next one."""
        for iteration, batch in self._held:
            if iteration == self._iteration + 1:
                return batch
        found = self._batcher.next(self._learned.version, self.mgr.stop_requested)
        if found is not None:
            self._held.append((self._iteration + 1, found))
        return found

    def _counts(self, batch: ExperienceBatch | None = None) -> BatchCounts:
        """The batcher's, as if the held batches that are in the policy, and `batch`, were done."""
        counts, trained = self._batcher.counts(), 0
        for iteration, held in self._held:
            if iteration <= self._iteration or held is batch:
                trained += len(held.segments)
        return replace(
            counts, trained=counts.trained + trained, under_way=counts.under_way - trained
        )

    def _warn_of_losses(self) -> None:
        now, before = self._batcher.counts(), self._told
        self._told = now
        for what, more, why in (
            ("incomplete", now.incomplete - before.incomplete, "their agent was killed"),
            ("missing", now.missing - before.missing, "a trainer was killed after it had them"),
        ):
            if more:
                self._warn(f"gmi {self.GMI_id}: {counted(more, 'segment')} {what}, as {why}")

    # The end -------------------------------------------------------------------------------

    def _after_training(self) -> None:
        """Tell the agents, and count what they had sent until they heard of it."""
        if self._writer is not None:
            self._writer.finish()
        self.group.barrier()  # who waits for agents to end must know that they were told to
        deadline_s = perf_counter() + self.mgr.timeout.total_seconds()
        try:
            while self._batcher.next(self._learned.version, lambda: perf_counter() > deadline_s):
                pass  # not trained on, and not given back: the run is over
        except LinkTimeout as late:
            self._warn(f"the last segments are not counted: {late}")
        counts = self._counts()
        for fate in FATES:
            self.mgr.tally[self.GMI_id, fate] = getattr(counts, fate)
        self.group.barrier()  # one that is killed later, and told that all is done, has counted

    def _outcome(self) -> dict[str, Any]:
        return {"experience": {fate: self.mgr.tally[self.GMI_id, fate] for fate in FATES}}

    def _parameters(self) -> FlatParameters:
        return self._learner.parameters

    def _own_state(self) -> dict[str, Any]:
        return {"generator": self._own.get_state()}

    def _load_own(self, state: dict[str, Any]) -> None:
        self._own.set_state(state["generator"])
        if not self._learned.marks:  # else it is this launch's, and its agents go on
            self._warn("agents begin new episodes: in mode async environments are not saved")

    def _close(self) -> None:
        """Nothing: the links end with the process. One that is killed before it has answered is
        replaced by one that opens them again."""
