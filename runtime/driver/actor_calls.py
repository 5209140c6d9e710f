"""Keeps the calls of each actor in order, from the call of a method to its answer.

The calls of one caller reach an actor in the order they were made; a call whose inputs are not
there yet holds up that caller's later ones and nobody else's, and none if the actor runs several
calls at once.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.errors import ActorDiedError

from .actor_table import ActorTable
from .dispatch import Dispatch
from .event_loop import EventLoop
from .processes import Actor, Process
from .task import CANCELLED, Task
from .task_table import TaskTable


class ActorCalls:
    """Calls of methods that are waiting, running or logged. Used by the runtime's thread only."""

    def __init__(
        self, loop: EventLoop, tasks: TaskTable, dispatch: Dispatch, actors: ActorTable
    ) -> None:
        self._loop = loop
        self._tasks = tasks
        self._live: Mapping[bytes, Task] = tasks.live
        self._dispatch = dispatch
        self._actors = actors
        self._table: Mapping[bytes, Actor] = actors.table

    def call(self, task: Task) -> None:
        """A method was called; it goes to the actor when its inputs are there, in its turn."""
        actor = self._table.get(task.actor)
        if actor is not None and task is actor.creation:
            self._actors.start_if_ready(actor)
            return
        if actor is None or actor.dead:
            if actor is not None:
                actor.death_seen = True
            self._tasks.fail(task, actor.death() if actor is not None else _gone(task.name))
            return
        line = actor.line(task)
        queue = actor.waiting.get(line)
        if queue is None and not task.missing:
            self._send(actor, task)
            return
        if queue is None:
            queue = actor.waiting[line] = collections.deque()
        queue.append(task)

    def ready(self, task: Task) -> None:
        """A method's inputs have come."""
        actor = self._table[task.actor]
        if task is actor.creation:
            self._actors.start_if_ready(actor)
        else:
            self._advance(actor, actor.line(task))

    def skipped(self, task: Task) -> None:
        """A method will not be run after all."""
        actor = self._table.get(task.actor)
        if actor is not None and task is actor.creation:
            if actor.process is None:
                self._actors.end_unstarted(actor, "", task.slots[0].error())
        elif actor is not None and not actor.dead:
            actor.sent(task)
            actor.unanswered.pop(task.sequence, None)
            self._advance(actor, actor.line(task))
            self._actors.maybe_end(actor)

    def _advance(self, actor: Actor, line: int | bytes) -> None:
        queue = actor.waiting.get(line)
        live = self._live
        while queue and not (queue[0].missing and live.get(queue[0].id) is queue[0]):
            task = queue.popleft()
            if live.get(task.id) is task:  # else one of its inputs failed, or it was cancelled
                self._send(actor, task)
        if queue is not None and not queue:
            del actor.waiting[line]

    def _send(self, actor: Actor, task: Task) -> None:
        if actor.process is None:
            actor.backlog.append(task)
            return
        actor.number(task)
        self._dispatch.add(task, actor.process)

    def answered(self, process: Process, task: Task, failure: bytes | None) -> bool:
        """Whether this answer is to be passed on: not if it was given before the crash."""
        actor = process.actor
        assert actor is not None
        if task is actor.creation:
            if not task.slots[0].done:
                self._actors.built(actor)
                return True
            if failure is not None:  # it would not be built another time either
                actor.rebuilding_failed = Slot(b"", task.name)
                actor.rebuilding_failed.fill(failure, failed=True)
            else:
                self._actors.built(actor)
            return False
        actor.unanswered.pop(task.sequence, None)
        if self._live.get(task.id) is not task:  # replayed, or cancelled
            return False
        # What a call had done when it was cancelled is not known: it is not run again.
        if actor.keeps_log and not (failure is not None and task.state == CANCELLED):
            actor.log.append(task)
        if actor.unreferenced and not actor.unanswered:
            self._loop.defer(lambda: self._actors.maybe_end(actor))
        return True

    def keeps(self, task: Task) -> bool:
        """Whether a call that was answered may have to be run again, with its inputs."""
        actor = self._table.get(task.actor) if task.actor else None
        logged = actor is not None and actor.keeps_log and not actor.dead
        return logged and task.state != CANCELLED


def _gone(name: str) -> ActorDiedError:
    return ActorDiedError(name.partition(".")[0], reason="it has ended, and nobody had its handle")
