"""Reports errors of calls whose references were dropped before anybody fetched the error."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.errors import ObjectStoreFullError, OutOfResources, TaskError, WorkerDiedError
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.protocol import CallFailure

from .processes import Actor
from .task import CANCELLED, TaskSpec

NOBODY: Final = "nobody had a handle of it any more"  # the reason of an unneeded actor's end
_LINES: Final = 40
_WIDTH: Final = 400
_REMEMBERED: Final = 1000


class UnretrievedErrors:
    """Prints each different error once. Used by the runtime's thread only."""

    def __init__(self, slots: Mapping[bytes, Slot], actors: Mapping[bytes, Actor]) -> None:
        self._slots, self._actors = slots, actors
        self._printed: set[tuple[str, str]] = set()

    def dropped(self, task: TaskSpec) -> None:
        """Handles a failed task of which a reference to a result was dropped."""
        if any(slot.failed and slot.id in self._slots for slot in task.slots):
            return  # somebody has another reference
        was_seen = any(slot.seen for slot in task.slots)
        for slot in task.slots:
            slot.seen = True
        if was_seen or task.state == CANCELLED or self._ended_on_purpose(task):
            return
        text = next(filter(None, map(_text, task.slots)), "")
        self._print(task.name, text, f"{task.name} failed, and nobody asked")

    def died(self, actor: Actor) -> None:
        """Handles a dead actor of which the last handle was dropped."""
        death = actor.death()
        on_purpose = death.exit_code == 0 or actor.stop_requested or death.reason
        if not actor.death_seen and (death.cause is not None or not on_purpose):
            self._print(actor.class_name, str(death), f"{actor.name} has died, and nobody asked")

    def _ended_on_purpose(self, task: TaskSpec) -> bool:
        """Tells whether the task's actor was stopped or killed on purpose."""
        if not task.actor:
            return False
        actor = self._actors.get(task.actor)
        return actor is None or actor.stop_requested or actor.end_reason not in ("", NOBODY)

    def _print(self, source: str, text: str, title: str) -> None:
        lines = text.rstrip().splitlines()[-_LINES:]
        if not lines or (source, lines[-1]) in self._printed:
            return
        if len(self._printed) < _REMEMBERED:
            self._printed.add((source, lines[-1]))
        body = "\n".join(f"  | {line[:_WIDTH]}" for line in lines)
        print(f"gmi-drl: {title}:\n{body}", file=sys.stderr)


def _text(slot: Slot) -> str:
    error = slot.error_
    if error is None and slot.body:
        failure: CallFailure = packing.unpack(slot.body)
        return failure.traceback
    reported_classes = (TaskError, WorkerDiedError, OutOfResources, ObjectStoreFullError)
    return str(error) if isinstance(error, reported_classes) else ""
