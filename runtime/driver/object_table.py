"""Keeps the table of objects: who holds them, where they lie, who waits for them.

Small values are kept in their messages. Large ones lie in the object store: `ObjectStore` decides
where, and what goes to disk when room is needed. This module carries out its instructions, those
for the disk in a thread of their own.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl.runtime import ids
from gmi_drl.runtime.api.refs import PENDING, Slot
from gmi_drl.runtime.errors import ObjectLostError, ObjectStoreFullError
from gmi_drl.runtime.gcs.tables import EventRow, ObjectRow
from gmi_drl.runtime.store import object_store
from gmi_drl.runtime.store.room_requests import PendingRoomRequests, RoomRequest
from gmi_drl.runtime.store.trimmer import MemoryTrimmer
from gmi_drl.runtime.wire.protocol import Place

from .reference_counts import ReferenceCounter

if TYPE_CHECKING:
    from .driver import Driver
    from .processes import Actor

DRIVER = 0  # as a holder: this process

PinResult = tuple[int, int] | BaseException


class ObjectTable:
    """Holds every object that may still be asked for. Used by the runtime's thread only."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._arena = driver, driver.arena
        self._loop, self._gcs = driver.loop, driver.gcs
        self._directory = driver.server.directory / "spill"
        self._disk: ThreadPoolExecutor | None = None
        self.nbytes = driver.arena.nbytes
        self.store = object_store.ObjectStore(self.nbytes)
        self._trimmer = MemoryTrimmer(self.nbytes)
        self.slots: dict[bytes, Slot] = {}
        self.references = ReferenceCounter()
        self.hold = self.references.hold
        self.room_requests = PendingRoomRequests()
        self._retries_soon = False  # at the end of this round
        self._creating: dict[bytes, RoomRequest] = {}
        self._pinning: dict[bytes, collections.deque[RoomRequest]] = {}

    # Who holds what.

    def add(self, slot: Slot, caller: int) -> None:
        """Adds a new object, with a reference in the process that asked for it."""
        self.slots[slot.id] = slot
        self.hold_for(caller, slot)

    def hold_for(self, caller: int, held: Slot | Actor) -> None:
        """Counts one reference more in the process `caller`, or (0) the driver."""
        if caller:
            self.hold(held.id, ("process", caller))
        else:
            held.held += 1
            self.hold(held.id, DRIVER)

    def release(self, id: bytes, holder: Any) -> None:
        """`holder` refers to an object or an actor no longer."""
        for freed in self.references.release(id, holder):
            self._free(freed)

    def holder_gone(self, holder: Any) -> None:
        """Releases everything that `holder` refers to, as it has ended."""
        for freed in self.references.holder_gone(holder):
            self._free(freed)

    def count(self, id: bytes, change: int) -> None:
        """Counts references to an object, or handles of an actor, in the driver itself."""
        target = self.slots.get(id) or self._driver.actors.table.get(id)
        if target is None:
            return
        target.held += change
        if change > 0 and target.held == 1:
            self.hold(id, DRIVER)
        elif change < 0 and not target.held:
            self.release(id, DRIVER)

    def _free(self, id: bytes) -> None:
        slot = self.slots.pop(id, None)
        if slot is None:
            if len(id) == ids.TASK_BYTES:
                self._driver.actors.unreferenced(id)
            return
        if slot.failed and not slot.seen and slot.task is not None:
            self._driver.unretrieved.dropped(slot.task)
        task = slot.task
        if task is not None and (
            task.id not in self._driver.tasks.live or 0 < ids.index(id) <= task.taken
        ):
            slot.body = b""  # the slot may live on with its task, which may be run again
        if slot.stored or id in self.store:
            self._do(self.store.delete(id))
            self._retry_soon()
            self._gcs.put(ObjectRow(id, slot.nbytes, "freed"))

    # What becomes of them.

    def settle(self, slot: Slot, place: Place | None, refs: Sequence[bytes], keep: Any) -> None:
        """Fills a slot with the bytes of its value, or (None) notes that they are in the store."""
        id = slot.id
        if place is None:
            self._do(self.store.seal(id))
            self._retry_soon()
            slot.stored = True
            slot.arrived()
            location = "disk" if self.store.state(id) == "disk" else "memory"
            self._gcs.put(ObjectRow(id, slot.nbytes, location, -1, time.time()))
        else:
            slot.nbytes = len(place)
            slot.fill(place, keep=keep)  # type: ignore[arg-type]
        if refs:
            slot.refs = refs
            for ref in refs:
                self.hold(ref, id)
        if slot.waiting or slot.requesters:
            self._tell(slot)

    def fail(self, slot: Slot, body: bytes | None, error: BaseException | None = None) -> None:
        """Fails a slot by a packed CallFailure, or by an error of the runtime's own."""
        if error is not None:
            slot.fail(error)
        else:
            slot.fill(body or b"", failed=True)
        self._tell(slot)

    def _tell(self, slot: Slot) -> None:
        waiting, slot.waiting = slot.waiting, None
        for task in waiting or ():
            self._driver.tasks.input_ready(task, slot)
        requesters, slot.requesters = slot.requesters, None
        for process, values in requesters or ():
            self._driver.requests.wanted_ready(process, slot, values)

    # Memory.

    def create(
        self, id: bytes, nbytes: int, label: str,
        then: Callable[[int | str | BaseException | None], None],
    ) -> None:  # fmt: skip
        """Finds room for a value to be written; `then` is called with its offset, or an error.

        Instead of an offset it may get the path of a file to write to, if views keep memory in use
        for too long, or None, if a task that was run again has made the value before.
        """
        slot = self.slots.get(id)
        if slot is not None:
            slot.nbytes = nbytes
        if self.store.state(id) == "creating":  # by a process that died
            self.abandon(id)
        elif id in self.store:
            then(None)
            return

        def again(request: RoomRequest) -> None:
            if self._creating.get(id) is request:  # else its writer died
                self._do(self.store.create(id, nbytes, label))

        def on_disk() -> str:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self.store.create_on_disk(id, nbytes, label)
            return str(self._path(id))

        request = self._creating[id] = RoomRequest(id, then, again, fallback=on_disk)
        again(request)

    def abandon(self, id: bytes) -> None:
        """Drops an object whose writer died before the value was complete."""
        if self._creating.pop(id, None) is not None or id in self.store:
            self._do(self.store.abort(id))
            self._retry_soon()

    def pin(self, id: bytes, then: Callable[[PinResult], None], patient: bool = True) -> None:
        """Keeps a stored value where it is; `then` is called with (offset, bytes), or an error.

        `patient`: it waits, up to a deadline, for others to release views of memory that it needs.
        """
        self._pin(id, RoomRequest(id, then, lambda request: self._pin(id, request), patient))

    def _pin(self, id: bytes, request: RoomRequest) -> None:
        if self.store.state(id) in (None, "creating"):
            slot = self.slots.get(id)
            error = slot.error() if slot is not None else None
            if slot is not None and slot.state == PENDING:  # it was lost, and is being rebuilt
                self._pin_later(slot, request)
            else:
                request.then(error or ObjectLostError(id, "", "nobody held it any more"))
            return
        self._pinning.setdefault(id, collections.deque()).append(request)
        self._do(self.store.pin(id))

    def unpin(self, id: bytes) -> None:
        """Takes back one pin."""
        self._do(self.store.unpin(id))
        self._retry_soon()
        self._driver.dispatch.room_freed()

    def give_back(self) -> bool:
        """Gives back memory that was unused for a while; True: call it again in 0.1 s."""
        if not self._trimmer.is_pending(self.store.used_bytes):
            return False
        blocks = self._trimmer.trim(self.store.holes(), self.store.used_bytes)
        if blocks:
            self._arena.give_back(blocks)
        return self._trimmer.is_pending(self.store.used_bytes)

    def close(self) -> None:
        """Waits for the disk's thread, and ends it."""
        if self._disk is not None:
            self._disk.shutdown(cancel_futures=True)

    def _do(self, instructions: Sequence[Any]) -> None:
        for instruction in instructions:
            kind = type(instruction)
            if kind is object_store.ObjectPinned:
                self._next_pin(instruction.key).then((instruction.offset, instruction.nbytes))
            elif kind is object_store.Placed:
                self._trimmer.mark_used(instruction.offset, instruction.nbytes)
                self._creating.pop(instruction.key).then(instruction.offset)
            elif kind is object_store.Spill:
                self._on_disk(self._spill, instruction)
            elif kind is object_store.Restore:
                self._trimmer.mark_used(instruction.offset, instruction.nbytes)
                self._on_disk(self._restore, instruction)
            elif kind is object_store.Unlink:
                self._path(instruction.key).unlink(missing_ok=True)
            elif kind is object_store.Refuse:
                self._refused(instruction)
            elif kind is object_store.Lost:
                self._lost(instruction.key, instruction.reason)

    def _next_pin(self, id: bytes) -> RoomRequest:
        requests = self._pinning[id]
        request = requests.popleft()
        if not requests:
            del self._pinning[id]
        return request

    def _refused(self, refusal: object_store.Refuse) -> None:
        error = ObjectStoreFullError(refusal.reason)
        request = self._creating.get(refusal.key) or self._next_pin(refusal.key)
        if refusal.pinned and request.patient:
            self.room_requests.add(request, error)
            return
        self._creating.pop(refusal.key, None)
        request.then(error)

    def _retry_soon(self) -> None:
        """Has requests that found no room tried again at the end of this round."""
        if self.room_requests and not self._retries_soon:
            self._retries_soon = True
            self._loop.defer(self._try_again)

    def _try_again(self) -> None:
        self._retries_soon = False
        self.room_requests.retry()

    def refuse_late(self) -> None:
        """Sends a request to the disk that has waited too long for memory, or fails it."""
        request = self.room_requests.take_late()
        if request is None:
            return
        result: Any = request.error
        if self._creating.get(request.id) is request:
            del self._creating[request.id]
            with contextlib.suppress(OSError):
                result = request.fallback() if request.fallback is not None else result
        request.then(result)

    def _lost(self, id: bytes, reason: str) -> None:
        """Rebuilds an object from its lineage; whoever waits for it goes on waiting."""
        requests = self._pinning.pop(id, collections.deque())
        slot = self.slots.get(id)
        if slot is None:
            for request in requests:
                request.then(ObjectLostError(id, "", reason))
            return
        self._gcs.put(ObjectRow(id, slot.nbytes, "lost"))
        self._gcs.put(EventRow(time.time(), "object lost", id, reason))
        slot.reset()
        for request in requests:
            self._pin_later(slot, request)
        self._driver.lineage.rebuild(slot, reason)

    def _pin_later(self, slot: Slot, request: RoomRequest) -> None:
        def there() -> None:
            error = slot.error()
            if slot.stored:
                self._pin(slot.id, request)
            else:
                request.then(error or ObjectLostError(slot.id, slot.call, "it is another one now"))

        slot.watch(there)

    # The disk, in its own thread.

    def _on_disk(self, action: Callable[[Any], None], instruction: Any) -> None:
        if self._disk is None:
            self._disk = ThreadPoolExecutor(1, "gmi_drl-disk")
        self._disk.submit(action, instruction)

    def _spill(self, spill: object_store.Spill) -> None:
        error = ""
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            with open(self._path(spill.key), "wb") as file:
                offset, left_bytes = spill.offset, spill.nbytes
                while left_bytes:
                    sent_bytes = os.sendfile(file.fileno(), self._arena.fd, offset, left_bytes)
                    offset, left_bytes = offset + sent_bytes, left_bytes - sent_bytes
        except OSError as failure:
            with contextlib.suppress(OSError):
                self._path(spill.key).unlink(missing_ok=True)
            error = f"{self._directory}: {failure.strerror}"
        self._loop.post(lambda: self._do(self.store.spilled(spill.key, error)))

    def _restore(self, block: object_store.Restore) -> None:
        error = ""
        try:
            with open(self._path(block.key), "rb") as file:
                if os.fstat(file.fileno()).st_size != block.nbytes:
                    raise OSError(0, f"{self._path(block.key)} has not its {block.nbytes} bytes")
                with mmap.mmap(file.fileno(), block.nbytes, access=mmap.ACCESS_READ) as mapping:
                    view = memoryview(mapping)
                    self._arena.write(block.offset, [view])
                    view.release()
        except OSError as failure:
            error = failure.strerror or str(failure)
        self._loop.post(lambda: self._do(self.store.restored(block.key, error)))

    def _path(self, id: bytes) -> Path:
        return self._directory / id.hex()
