"""The agent of asynchronous training: simulates and infers, and sends what it saw to trainers.

It acts with the newest policy of the board and sends segments of `horizon` steps by dispatcher,
compressor and migrator. When trainers are behind, the links are full and it waits; it never drops a
segment that it has begun to send, but at the end of the run.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import torch

from gmi_drl.comm.errors import LinkClosed, LinkEnded, WaitStopped
from gmi_drl.comm.experience import (
    Channel,
    Compressor,
    Dispatcher,
    Grouping,
    Migrator,
    Route,
    Schema,
    choose_grouping,
    joined,
    mcc,
    measure_cost,
    project,
    ucc,
)
from gmi_drl.comm.shm.board import BoardReader
from gmi_drl.comm.transports import LinkSpec, Sender, create_link
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.optimizers.trained_steps import TrainedSteps
from gmi_drl.roles.policies.flat_parameters import FlatParameters, PublishedPolicy
from gmi_drl.roles.samples.codec import (
    END_FIELD,
    FRAMES_FIELD,
    STATE_FIELD,
    STATS_FIELD,
    older_frames,
    segment_channels,
    segment_columns,
)
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.seeds import LOSSES
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.runtime.process.progress import beat

from .first_priorities import FirstPriorities

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole

_GROUPINGS: Final = {"mcc": mcc, "ucc": ucc, "joined": joined}


class SampleSender:
    """Collects and sends until the trainers are done or the launcher asks to stop."""

    def __init__(self, role: ActingRole, env: VecEnv) -> None:
        self.mgr, self._gmi_id = role.mgr, role.GMI_id
        self._algorithm = role.algorithm
        self._trained_steps = TrainedSteps(role.mgr)
        self._published = PublishedPolicy(FlatParameters(role.policy.network), role.normalizers)
        self._vector = torch.zeros(self._published.numel, device=self.mgr.context.device)
        self._collector = role.collector(env, role.batch(env.num_env))
        generator = torch.Generator(self.mgr.context.device).manual_seed(self.mgr.seed(LOSSES))
        self._first_priorities = FirstPriorities.wanted(
            role.algorithm, self._collector.batch, generator, role.stacking
        )

    def run(self) -> dict[str, Any]:
        """Returns this GMI's row of the tally."""
        with ExitStack() as stack:
            stack.callback(self._collector.close)
            return self._run(stack)

    def _run(self, stack: ExitStack) -> dict[str, Any]:
        collector, board = self._collector, self.mgr.context.wires.board
        assert board is not None
        self._board: BoardReader = board.reader()
        self._tally, self._version = self.mgr.tally, -1
        try:
            dispatcher = self._dispatcher(stack)
        except LinkClosed:  # by the process before this one, whose work was done
            return self._tally.row(self._gmi_id)
        self._board.wait(-1, self.mgr.timeout, self._is_over)
        number, send_s = 0, 0.0
        try:
            while not self._is_over():
                self.mgr.begin_iteration()
                self._load_newest_policy()
                with phase("infer"):
                    collector.collect(number)
                    seconds, episodes = collector.read()
                if self._is_over():  # so trainers that count what is left do not wait for ever
                    break
                with phase("send"):
                    numbers = (*seconds, send_s, self.mgr.context.process)
                    send_s = self._send(dispatcher, episodes, numbers)
                number += 1
        except WaitStopped:  # the run is over: nobody waits for what is left
            pass
        except LinkEnded:
            if not self._is_over():  # else the trainers are done, and have left
                raise
        dispatcher.begin(self._version)  # gives up what was not sent, and counts it
        given_up = dispatcher.counts()
        self._count("lost", given_up.lost)
        self._count("unsent", given_up.unsent)
        return self._tally.row(self._gmi_id)

    def _is_over(self) -> bool:
        mgr = self.mgr
        return self._board.finished() or mgr.stop_requested() or mgr.is_bereft

    def _load_newest_policy(self) -> None:
        if self._board.version() > self._version:
            self._version = self._board.read(self._vector)
            self._published.load(self._vector)
            self._algorithm.before_sampling(self._trained_steps.at(self._version))

    def _count(self, name: str, increase: int) -> None:
        self._tally[self._gmi_id, name] += increase

    def _send(self, dispatcher: Dispatcher, episodes: Seen, numbers: tuple[float, ...]) -> float:
        """Sends what was collected; returns the seconds that took, waiting for room included."""
        beat("sending")
        start = perf_counter()
        self._count("begun", 1)
        self._count("steps", self._collector.batch["reward"].numel())
        if self._first_priorities is not None:
            self._first_priorities.of(self._collector.batch)
        dispatcher.begin(self._version)
        for t, row in enumerate(self._rows):
            dispatcher.put(t, row)
        stats = torch.tensor((*episodes, *numbers), dtype=torch.float64)
        fields = {END_FIELD: self._collector.observation, STATS_FIELD: stats}
        batch = self._collector.batch
        if batch.sequences is not None:
            fields[STATE_FIELD] = batch.sequences.state
        if (frames := older_frames(batch)) is not None:
            fields[FRAMES_FIELD] = frames
        dispatcher.end(fields)
        self._count("sent", 1)
        return perf_counter() - start

    def _dispatcher(self, stack: ExitStack) -> Dispatcher:
        """Opens the links to all trainers, which `stack` closes, and returns their dispatcher."""
        context, timeout, settings = self.mgr.context, self.mgr.timeout, self.mgr.config.experience
        batch, priorities = self._collector.batch, None
        if self._first_priorities is not None:
            priorities = self._first_priorities.priorities
        columns = segment_columns(batch, self._algorithm.segment_fields, priorities)
        steps, num_env = batch["reward"].shape
        self._rows = [{name: column[t] for name, column in columns.items()} for t in range(steps)]
        links = context.wires.out_of(self._gmi_id)
        channels = segment_channels(batch, columns, self._collector.observation)
        grouping = self._grouping(channels, steps, num_env, next(iter(links.values())))
        lz4 = frozenset(settings.lz4)
        schema = Schema(channels, grouping, steps, num_env, settings.capacity, lz4)
        raw, streams = schema.to_bytes(), schema.streams()
        routes = []
        for trainer, link in links.items():
            sender = stack.enter_context(link.sender(raw, streams, timeout))
            stack.callback(self._give_up_if_lost, sender)
            sender.pin(context.device)
            near = self.mgr.layout.gmi(trainer).gpu_id == context.spec.gpu_id
            routes.append(Route(sender, trainer, near, link.target))
        migrator = Migrator(routes, timeout=timeout, stop=self._is_over)
        return Dispatcher(schema, Compressor(schema, migrator))

    def _give_up_if_lost(self, sender: Sender) -> None:
        """Has a link's end wait for no trainer, where some are lost and the others read no more."""
        if self.mgr.is_bereft:
            sender.give_up()

    def _grouping(
        self, channels: tuple[Channel, ...], steps: int, num_env: int, link: LinkSpec
    ) -> Grouping:
        """Returns the config's grouping; `auto`: the fastest by what packets cost on such a link.

        The choice is kept in the run's folder, where a process that takes this one's place finds
        it: the two must send alike.
        """
        channel_choice = self.mgr.config.experience.channels
        if channel_choice != "auto":
            return _GROUPINGS[channel_choice](channels, steps)
        context, name = self.mgr.context, f"channels_gmi{self._gmi_id}.json"
        path = None if context.folder is None else context.folder / "report" / name
        if path is not None and (saved_schema := _read_schema(path, context.session)) is not None:
            return Schema.from_bytes(saved_schema.encode(), str(path)).grouping
        itself = create_link(
            link.source,
            "itself",
            directory=context.private,
            kind=link.kind,  # type: ignore[arg-type]
        )
        cost = measure_cost(itself)
        grouping = choose_grouping(channels, steps, num_env, cost)
        if path is not None:
            groupings = {name: make(channels, steps) for name, make in _GROUPINGS.items()}
            speeds = {
                name: project(projected, channels, steps, num_env, cost)
                for name, projected in {**groupings, "chosen": grouping}.items()
            }
            schema = Schema(channels, grouping, steps, num_env).to_bytes().decode()
            record = {
                "session": context.session,
                "packet_s": cost.points,
                "projected_bytes_per_s": speeds,
                "schema": schema,
            }
            replace_file(path, json.dumps(record, indent=1))
        return grouping


def _read_schema(path: Path, session: str) -> str | None:
    """Returns the schema that an earlier process of this GMI chose in this launch, or None."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(record["schema"]) if record.get("session") == session else None
