"""Asynchronous training on samples: batches of segments in, versions of a policy out.

Agents send segments all the time, to trainers of their host, or to those of other hosts where it
has none. Trainers meet in each minibatch's gradient, and once an iteration; the first one of each
host publishes the policy on its board after every update.

No segment is trained on twice, or lost silently. A batch's slots are given back to the agents only
when it is certain that its update stays: with several trainers, when all have begun the next
iteration. Until then a trainer that is killed finds it again, and one that goes back an iteration,
because another had not finished it, trains on it again. A checkpoint, and the state that a trainer
takes over from its peers, say which segments of each agent each trainer has put into the policy.
What a trainer without peers had trained on since its last checkpoint is lost with it, and counted
as missing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

from gmi_drl.comm import Group
from gmi_drl.comm.errors import LinkTimeout
from gmi_drl.comm.experience import BatchCounts, Batcher, ExperienceBatch
from gmi_drl.comm.shm.board import BoardWriter
from gmi_drl.placement import counted
from gmi_drl.roles.graphs import Pool
from gmi_drl.roles.policies.flat_parameters import PublishedPolicy
from gmi_drl.roles.role.host import FATES
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.codec import (
    PRIORITY_FIELD,
    SEGMENT_STATS,
    STATS_FIELD,
    received,
)
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.seeds import draw_on
from gmi_drl.roles.telemetry.experience import ExperienceCodec, Kept, Use
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import Progress

from .gradient_step import check_finite
from .learner import Learner
from .optimizer import NoMore, Optimizer, Round

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole

Marks = dict[int, tuple[int, ...]]  # by agent: see Batcher.trained

_AGENT_PHASES: Final = ("simulate", "infer", "send")
_COUNTED: Final = FATES[:-1]
_MARK: Final = 6  # numbers of a mark
_NO_MARK: Final = (-1, -1, *([0] * (_MARK - 2)))


def make(role: ActingRole) -> AsyncSampleRounds:
    """The optimizer of a role, on the links from its agents."""
    role.build_for_spaces()
    return AsyncSampleRounds(role)


class AsyncSampleRounds(Optimizer):
    """One batch of segments a round, its gradients averaged over the trainers.

    Its links end with the process, whose successor may open them again.
    """

    trains_once: ClassVar[bool] = True  # on each segment, so that it must not be too old
    has_replay: ClassVar[bool] = False

    def __init__(
        self, role: ActingRole, pool: Pool | None = None, capture_loss: bool = True
    ) -> None:
        """`pool`, `capture_loss`: as for a Learner."""
        mgr, context = role.mgr, role.mgr.context
        config, experience = mgr.config, mgr.config.experience
        self._mgr, self._group, self._stacking = mgr, context.group, role.observed.stacking
        self._generator = torch.Generator(context.device).manual_seed(mgr.seed(1))
        type(role.algorithm).check_segments()
        self.learner = Learner(
            role.algorithm, self._generator, pool=pool, capture_loss=capture_loss
        )
        self._published = PublishedPolicy(self.learner.parameters, role.normalizers)
        self._vector = torch.zeros(self._published.numel, device=context.device)
        self._gmi_ids = [gmi.gmi_id for gmi in mgr.layout.gmis]
        self._agents = [gmi.gmi_id for gmi in mgr.layout.holding("agent")]
        self._trainers = [gmi.gmi_id for gmi in mgr.layout.holding("trainer")]
        extra = 2 + len(_COUNTED) + (1 + _MARK) * len(self._agents)
        self._experience = ExperienceCodec(
            experience.batch_segments,
            is_recorded=config.run.lineage > 0,
            has_replay=self.has_replay,
        )
        self.progress = Progress(mgr.layout, _AGENT_PHASES, extra + self._experience.numel)
        self._segment_samples = config.algorithm.horizon * config.env.num_env  # of a segment
        self._round_steps = self._segment_samples * experience.batch_segments * self._group.size
        links = context.wires.into(mgr.GMI_id)
        receivers = {agent: link.receiver(mgr.timeout) for agent, link in links.items()}
        for receiver in receivers.values():
            receiver.pin(context.device)
        device = None if context.device.type == "cpu" else context.device
        segments = experience.batch_segments
        lag = experience.max_policy_lag if self.trains_once else sys.maxsize
        self._batcher = Batcher(receivers, segments, lag, mgr.timeout, device=device)
        self._writer: BoardWriter | None = None
        host = mgr.layout.host_of(mgr.GMI_id)
        first = next(gmi for gmi in self._trainers if mgr.layout.host_of(gmi) == host)
        if mgr.GMI_id == first:
            assert context.wires.board is not None
            self._writer = context.wires.board.writer()
        self._marks: dict[int, Marks] = {}  # what is in the policy, by trainer, by agent
        self._ahead = 0  # by so many the version on the board is ahead of `_version`
        self._version = 0  # updates by all launches
        self._iteration = 0  # the last one that is in the policy
        self._resumed = False
        # Batches that were not given back, each with its iteration.
        self._held: deque[tuple[int, ExperienceBatch]] = deque()
        self._warned_counts = BatchCounts()
        self._rates = dict.fromkeys(self._agents, 0.0)  # predictions a second of each agent

    @property
    def board_version(self) -> int:
        """The policy's number on the board: higher with each update, also after a step back."""
        return self._version + self._ahead

    @property
    def refused(self) -> int:
        return self._batcher.refused

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "version": self._version,
            "marks": self._marks,
            "ahead": self._ahead,
            "session": self._mgr.context.session,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._version = state["version"]
        self._marks, self._ahead = {}, 0
        # In another session the links are others, and the board is empty.
        if state["session"] == self._mgr.context.session:
            self._ahead, self._marks = state["ahead"], state["marks"]

    def own_state(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        draw_on(self._generator, state["generator"])
        if not self._marks:  # else the state is of this launch, whose agents go on
            self._mgr.warn("agents begin new episodes: in mode async environments are not saved")

    def connect(self, group: Group, iteration: int) -> None:
        self.learner.connect(group)
        self.progress.connect(group)
        self._iteration = iteration
        while self._held and self._held[0][0] <= iteration:
            self._batcher.done(self._held.popleft()[1])  # what is left is to be trained on again
        if not self._resumed:
            marks = self._marks.get(self._mgr.GMI_id, {})
            self._batcher.resume(marks)
            self._resumed = True
            self._count_undone(marks)
        newest = -1 if self._writer is None else self._writer.version()
        newest = max(group.exchange(newest + 1)) - 1  # of all hosts' boards
        if self.board_version <= newest:
            self._ahead += newest + 1 - self.board_version
        self._publish()

    def step(self, iteration: int, steps: int) -> Round | NoMore:
        start = perf_counter()
        with phase("wait"):
            batch = self._next_batch(iteration + 1)
            has_batch = self._group.exchange(int(batch is not None))
        if not all(has_batch):
            return NoMore(stopped=True)  # a trainer was asked to stop, and has no experience
        assert batch is not None
        train_start, learner, version = perf_counter(), self.learner, self.board_version
        with phase("train"):
            fields = learner.algorithm.segment_fields
            fields += tuple(name for name in (PRIORITY_FIELD,) if name in batch.columns)
            self._train(received(batch.columns, batch.per_segment, fields, self._stacking), steps)
            stats = learner.stats()
            check_finite(stats)
            self._version += 1
            reduce_s = learner.clock.read().get("reduce", 0.0)
        if self._held[0][1] is not batch:  # all trainers are past the iteration before
            self._batcher.done(self._held.popleft()[1])
        phases = (train_start - start, perf_counter() - train_start - reduce_s, reduce_s)
        outcome = self._agree(batch, version, phases, stats)
        self._iteration = iteration + 1
        if self._group.size == 1:
            self._batcher.done(self._held.popleft()[1])
        self._count_settled()
        self._publish()
        self._warn_of_losses()
        return outcome

    def _train(self, batch: Batch, steps: int) -> None:
        """Trains on a batch after `steps` steps of environments."""
        self.learner.anneal(steps / self._mgr.config.run.total_steps)
        self.learner.update(batch)

    def _agree(
        self,
        batch: ExperienceBatch,
        version: int,
        phases: Sequence[float],
        stats: dict[str, float | None],
    ) -> Round:
        """Merge what this trainer did with `batch` with what the others did.

        `version` is that of the policy that was trained. Each trainer learns how far all are with
        each agent, so that one that is killed now trains on nothing twice.
        """
        marks, counts = self._batcher.trained(batch), self._counts(batch)
        rows = batch.per_segment[STATS_FIELD].tolist()
        lags = [version - segment.policy_version for segment in batch.segments]
        first, count = SEGMENT_STATS.index("simulate_s"), len(_AGENT_PHASES)
        extra = [float(sum(lags)), float(max(lags)), *(getattr(counts, name) for name in _COUNTED)]
        agents: dict[int, list[float]] = {}
        for agent in self._agents:
            agent_rows = [r for r, s in zip(rows, batch.segments, strict=True) if s.gmi_id == agent]
            agents[agent] = [sum(row[first + i] for row in agent_rows) for i in range(count)]
            extra += [len(agent_rows), *marks.get(agent, _NO_MARK)]
        uses = [
            Use(segment.gmi_id, int(row[-1]), segment.policy_version, 1, self._segment_samples)
            for segment, row in zip(batch.segments, rows, strict=True)
        ]
        end = len(extra)
        extra += self._experience.pack(uses, max(lags), self._kept(self._iteration + 1))
        episodes = Seen(*(sum(row[i] for row in rows) for i in range(3)))
        agreed = self.progress.agree(episodes, phases, self._mgr.stop_requested(), agents, extra)
        sums = [sum(column) for column in zip(*agreed.extra, strict=True)]
        base, seconds = 2 + len(_COUNTED), dict(zip(self._gmi_ids, agreed.gmi_seconds, strict=True))
        self._marks = {trainer: Marks() for trainer in self._trainers}
        for index, agent in enumerate(self._agents):
            begin = base + index * (1 + _MARK)
            if busy_s := sum(seconds[agent].values()):
                self._rates[agent] = sums[begin] * self._segment_samples / busy_s
            for trainer, row in zip(self._trainers, agreed.extra, strict=True):
                self._marks[trainer][agent] = tuple(map(int, row[begin + 1 : begin + 1 + _MARK]))
        wall_s = max(sum(seconds[trainer].values()) for trainer in self._trainers)
        segments = len(batch.segments) * self._group.size
        speed = segments * self._segment_samples / wall_s
        metrics = {
            "steps_per_s": speed,
            **agreed.metrics,
            "policy_lag_mean": sums[0] / segments,
            "policy_lag_max": max(row[1] for row in agreed.extra),
            "predictions_per_s": sum(self._rates.values()),
            "training_samples_per_s": speed,
            **{f"segments_{name}": int(n) for name, n in zip(_COUNTED, sums[2:base], strict=True)},
            **stats,
        }
        experience = self._experience.unpack([row[end:] for row in agreed.extra])
        return Round(self._round_steps, metrics, agreed.gmi_seconds, agreed.stop, experience)

    def _kept(self, iteration: int) -> Kept | None:
        """Describes the replay after `iteration`, where there is one."""
        return None

    def _next_batch(self, number: int) -> ExperienceBatch | None:
        """Returns the batch of iteration `number`: one it has begun before, or the next one."""
        if number in (held_batches := dict(self._held)):
            return held_batches[number]
        batch = self._batcher.next(self.board_version, self._mgr.stop_requested)
        if batch is not None:
            self._held.append((number, batch))
        return batch

    def _publish(self) -> None:
        if self._writer is not None:
            self._published.write(self._vector)
            self._writer.publish(self.board_version, self._vector)

    def _count_undone(self, marks: Marks) -> None:
        """Counts the segments that an earlier process settled and the loaded state lacks."""
        mgr, settled = self._mgr, sum(sum(mark[2:]) for mark in marks.values())
        undone = mgr.tally[mgr.GMI_id, "settled"] - settled
        mgr.tally[mgr.GMI_id, "settled"] = settled
        if undone > 0:
            mgr.tally[mgr.GMI_id, "undone"] += undone
            mgr.warn(
                f"gmi {mgr.GMI_id}: {counted(undone, 'segment')} of its training after the "
                "last checkpoint lost (run.checkpoint_every)"
            )

    def _count_settled(self) -> None:
        counts = self._batcher.counts()
        settled = counts.trained + counts.stale + counts.incomplete + counts.missing
        self._mgr.tally[self._mgr.GMI_id, "settled"] = settled

    def _counts(self, batch: ExperienceBatch | None = None) -> BatchCounts:
        """Returns the batcher's counts with held batches in the policy, and `batch`, as trained."""
        counts = self._batcher.counts()
        done = (held for number, held in self._held if number <= self._iteration or held is batch)
        extra = sum(len(held.segments) for held in done)
        return replace(counts, trained=counts.trained + extra, under_way=counts.under_way - extra)

    def _warn_of_losses(self) -> None:
        counts, warned = self._batcher.counts(), self._warned_counts
        self._warned_counts = counts
        for fate, count, cause in (
            ("incomplete", counts.incomplete - warned.incomplete, "their agent was killed"),
            ("missing", counts.missing - warned.missing, "a trainer was killed after it had them"),
        ):
            if count:
                self._mgr.warn(
                    f"gmi {self._mgr.GMI_id}: {counted(count, 'segment')} {fate}, as {cause}"
                )

    def finish(self) -> None:
        """Tells the agents to end, and counts what they had sent before they knew."""
        mgr = self._mgr
        if self._writer is not None:
            self._writer.finish()
        self._group.barrier()  # whoever waits for agents to end must know they were told
        # Else the process before this one has counted, and agents of other hosts are gone.
        if not any(mgr.tally[mgr.GMI_id, fate] for fate in FATES):
            self._count_the_last()
        self._group.barrier()  # a trainer that is killed later has counted

    def _count_the_last(self) -> None:
        """Takes what agents send until they end, and writes down what became of all segments."""
        mgr = self._mgr
        deadline_s = perf_counter() + mgr.timeout.total_seconds()
        try:
            while self._batcher.next(
                self.board_version, lambda: mgr.is_bereft or perf_counter() > deadline_s
            ):
                pass  # not trained on, and not given back: the run is over
        except LinkTimeout as error:
            mgr.warn(f"the last segments are not counted: {error}")
        counts = self._counts()
        for fate in FATES:
            mgr.tally[mgr.GMI_id, fate] = getattr(counts, fate)

    def outcome(self) -> dict[str, Any]:
        tally, gmi_id = self._mgr.tally, self._mgr.GMI_id
        return {"experience": {fate: tally[gmi_id, fate] for fate in FATES}}
