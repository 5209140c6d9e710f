"""Waits, in the threads of a process on Ray, for results and for the deaths of actors."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import ray

from gmi_drl.runtime.api.refs import Gate, Slot

from . import interrupts
from .actors import Fate
from .objects import RayObjects

_POLL_S: Final = 0.05  # between two checks whether an actor has ended
_LISTEN_S: Final = 1.0  # between two checks whether a thread still has to wait


class Waiter:
    """Fills the slots that threads wait for."""

    def __init__(self, objects: RayObjects) -> None:
        self._objects = objects
        self._local = threading.local()
        self.fates: weakref.WeakKeyDictionary[Slot, Fate] = weakref.WeakKeyDictionary()

    def want(self, slots: Sequence[Slot], values: bool) -> None:
        wanted = self._wanted()
        for slot in slots:
            if not slot.done:
                wanted[id(slot)] = slot

    def unwant(self, slots: Sequence[Slot]) -> None:
        self._wanted().clear()

    def _wanted(self) -> dict[int, Slot]:
        """Returns the slots that this thread waits for."""
        slots: dict[int, Slot] = self._local.__dict__.setdefault("wanted", {})
        return slots

    def notify(self, slots: Sequence[Slot]) -> None:
        """Has slots filled without a thread that waits."""
        for slot in slots:
            thing, arrived = self._objects.source(slot)
            if isinstance(thing, ray.ObjectRef):
                thing.future().add_done_callback(lambda _, arrived=arrived: arrived())
            elif not slot.done:
                threading.Thread(target=self._block_on, args=(slot,), daemon=True).start()

    def _block_on(self, slot: Slot) -> None:
        """Waits for a slot in a thread, until it is filled or nobody can fill it any more."""
        gate = Gate(1)
        if not slot.watch(gate.arrived):
            return
        while not gate.open and (slot in self.fates or self._objects.source(slot)[0] is not None):
            self.want([slot], False)
            self.block(gate, _LISTEN_S)

    def block(self, gate: Gate, timeout_s: float | None) -> bool:
        """Waits in Ray, which lends a waiting task's CPU to others."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        slots = self._wanted()
        while True:
            pending: dict[Any, Callable[[], None]] = {}
            must_look = False
            for slot in list(slots.values()):
                if slot.done:
                    del slots[id(slot)]
                elif not slot.is_watched:  # `get` waits for one after the other
                    continue
                elif slot in self.fates:
                    must_look = not self._check_death(slot) or must_look
                else:
                    thing, arrived = self._objects.source(slot)
                    if thing is not None:
                        pending[thing] = arrived
            if gate.open:
                return True
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if left_s == 0.0 and timeout_s and not pending:
                break
            if must_look or not pending:  # other slots are filled by another thread
                left_s = _POLL_S if left_s is None else min(left_s, _POLL_S)
            if pending:
                for thing in _ready(list(pending), left_s):
                    pending[thing]()
            elif gate.wait(left_s):
                return True
            if deadline_s is not None and time.monotonic() >= deadline_s and not gate.open:
                break
        slots.clear()
        return gate.open

    def _check_death(self, slot: Slot) -> bool:
        fate = self.fates[slot]
        if not fate.dead:
            return False
        slot.resolve(fate.death())
        return True


def _ready(things: list[Any], timeout_s: float | None) -> list[Any]:
    """Returns which of Ray's references and generators are ready; waits for the first."""
    ready: list[Any]
    try:
        with interrupts.wait():
            ready, unready = ray.wait(things, num_returns=1, timeout=timeout_s)
            if ready and unready:
                ready += ray.wait(unready, num_returns=len(unready), timeout=0)[0]
            return ready
    except ValueError as error:
        if "owner is unknown" not in str(error):
            raise
        time.sleep(_POLL_S)  # another thread has taken and dropped the item of a generator
    return []
