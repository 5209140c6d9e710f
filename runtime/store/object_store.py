"""Decides which object lies where, which goes to disk (spilling), and who waits for room.

It is a pure state machine: each method is told what happened, and returns the driver's next
instructions, in order. An object is *creating* until `seal`, then in *memory*; when room is needed
and nobody has it pinned it is *spilling*, then on *disk*, and *restoring* when somebody pins it
again. Sealed objects never change, so a restored one keeps its copy on disk.

Requests for room are served in the order they came. The first one gets the space of the least
recently used objects that lie in the hole it will take. If all of these are not enough, it waits as
long as objects that are being written could make up for it, and is refused otherwise. So nobody may
wait for a Placed while holding another object unsealed.

An object that is deleted or lost while pinned leaves the store at once, and its block is freed with
the last pin. If its key was created again, that is the last pin of both, as `unpin` does not tell
them apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

from .allocator import Allocator, block_bytes

State = Literal["creating", "memory", "spilling", "disk", "restoring"]

_NAMED_OBJECTS: Final = 5  # that a refusal names


@dataclass(frozen=True)
class _Block:
    key: bytes
    offset: int
    nbytes: int


class Placed(_Block):
    """Answers `create`: the writer may write to this block, until `seal` or `abort`."""


class ObjectPinned(_Block):
    """Answers one `pin`: the object stays in this block until `unpin`."""


class Spill(_Block):
    """Write the block to the object's file, then call `spilled`."""


class Restore(_Block):
    """Read the object's file into the block, then call `restored`."""


@dataclass(frozen=True)
class Refuse:
    """Answers `create` or one `pin`: there is no room, or (`pinned`) not while others have pins."""

    key: bytes
    reason: str
    pinned: bool = False


@dataclass(frozen=True)
class Lost:
    """Answers all pins that wait for an object: it is lost."""

    key: bytes
    reason: str


@dataclass(frozen=True)
class Unlink:
    """Delete the object's file."""

    key: bytes


Instruction = Placed | ObjectPinned | Refuse | Lost | Spill | Restore | Unlink


@dataclass(slots=True, eq=False)
class _StoredObject:
    key: bytes
    nbytes: int
    label: str
    state: State = "creating"
    offset: int | None = None
    pins: int = 0
    waiting: int = 0  # pins that were not answered yet
    on_disk: bool = False  # there is a copy on disk, whatever the state
    deleted: bool = False
    older: Sequence[_StoredObject] = ()  # earlier objects of this key that are still pinned


class ObjectStore:
    """Keeps `limit_bytes` of objects in memory, and the rest on disk."""

    def __init__(self, limit_bytes: int) -> None:
        self._allocator = Allocator(limit_bytes)
        self._objects: dict[bytes, _StoredObject] = {}
        self._gone: dict[bytes, _StoredObject] = {}  # out of the store, but pinned
        self._idle: dict[bytes, _StoredObject] = {}  # may be spilled; least recently used first
        self._busy: dict[bytes, _StoredObject] = {}  # on the way to disk or back
        self._waiting: deque[_StoredObject] = deque()  # for room
        self._at: dict[int, _StoredObject] = {}  # by offset
        self.spilled_bytes = 0  # on disk

    @property
    def used_bytes(self) -> int:
        """Returns the bytes of memory in use, with what rounding to lines and pages adds."""
        return self._allocator.used_bytes

    def holes(self) -> Iterable[tuple[int, int]]:
        """Returns (offset, end) of all memory that is free."""
        return self._allocator.holes()

    def __contains__(self, key: bytes) -> bool:
        return key in self._objects

    def state(self, key: bytes) -> State | None:
        """Returns where the object is; None if the store has no such object (any more)."""
        stored = self._objects.get(key)
        return stored.state if stored else None

    # What processes ask for

    def create(self, key: bytes, nbytes: int, label: str = "") -> list[Instruction]:
        """Makes room for a new object of `label`; answered by a Placed or a Refuse."""
        if key in self._objects:
            raise ValueError(f"object {key.hex()} exists already. Delete it first.")
        if block_bytes(nbytes) > self._allocator.nbytes:
            text = (
                f"an object of {size_text(nbytes)} does not fit: the object store has "
                f"{size_text(self._allocator.nbytes)}. Give init(object_store_bytes=...) more."
            )
            return [Refuse(key, text)]
        return self._request_room(self._new(key, nbytes, label))

    def create_on_disk(self, key: bytes, nbytes: int, label: str = "") -> None:
        """Adds an object that is written to its file, after `create` was refused."""
        new = self._new(key, nbytes, label)
        new.on_disk = True
        self.spilled_bytes += nbytes

    def _new(self, key: bytes, nbytes: int, label: str) -> _StoredObject:
        new = self._objects[key] = _StoredObject(key, nbytes, label)
        previous = self._gone.pop(key, None)
        if previous is not None:
            new.pins, new.older = previous.pins, [*previous.older, previous]
        return new

    def seal(self, key: bytes) -> list[Instruction]:
        """Notes that its bytes are written; nothing happens if it was lost meanwhile."""
        out: list[Instruction] = []
        stored = self._objects.get(key)
        if stored is None or stored.state != "creating":
            return out
        if stored.offset is None and not stored.on_disk:  # it still waits for room
            return out
        stored.state = "disk" if stored.offset is None else "memory"
        if stored.deleted:
            self._drop(stored, out)
        elif stored.state == "memory" and not stored.pins:
            self._idle[key] = stored
        return self._serve(out)

    def abort(self, key: bytes) -> list[Instruction]:
        """Drops an object whose writer died; nothing happens if it is sealed, or not there."""
        out: list[Instruction] = []
        stored = self._objects.get(key)
        if stored is None or stored.state != "creating":
            return out
        self._drop(stored, out)
        return self._serve(out)

    def pin(self, key: bytes) -> list[Instruction]:
        """Pins it in memory; answered by ObjectPinned or Refuse for each pin, or by one Lost."""
        stored = self._objects.get(key)
        if stored is None or stored.state == "creating":
            raise ValueError(f"object {key.hex()} cannot be pinned. Wait until it is sealed.")
        if stored.state in ("memory", "spilling"):
            assert stored.offset is not None
            stored.pins += 1
            self._idle.pop(key, None)
            return [ObjectPinned(key, stored.offset, stored.nbytes)]
        stored.waiting += 1
        return self._request_room(stored) if stored.state == "disk" and stored.waiting == 1 else []

    def unpin(self, key: bytes) -> list[Instruction]:
        """Takes back one pin of the key."""
        stored = self._objects.get(key) or self._gone.get(key)
        if stored is None or not stored.pins:
            raise ValueError(f"object {key.hex()} is not pinned. Unpin once for each ObjectPinned.")
        stored.pins -= 1
        if stored.pins:
            return []
        for older in stored.older:
            self._free(older)
        stored.older = ()
        if self._gone.pop(key, None):
            if self._busy.get(key) is not stored:
                self._free(stored)
        elif stored.state == "memory":
            self._idle[key] = stored
        return self._serve([])

    def delete(self, key: bytes) -> list[Instruction]:
        """Drops an object that nobody refers to any more, if there is one."""
        out: list[Instruction] = []
        stored = self._objects.get(key)
        if stored is None:
            return out
        if stored.state == "creating":
            stored.deleted = True  # its writer is still at work
            return out
        out += [Refuse(key, "it was deleted while somebody waited for it.")] * stored.waiting
        self._drop(stored, out)
        return self._serve(out)

    # What the driver reports

    def spilled(self, key: bytes, error: str = "") -> list[Instruction]:
        """Notes that a Spill was done; or failed, and left no file behind."""
        out: list[Instruction] = []
        stored = self._busy.pop(key)
        if not error:
            stored.on_disk = True
            self.spilled_bytes += stored.nbytes
        if self._objects.get(key) is not stored:
            self._clean_up(stored, out)
        elif not error and not stored.pins:
            stored.state = "disk"
            self._free(stored)
        else:
            stored.state = "memory"
            if not stored.pins:
                self._idle[key] = stored  # as if just used, so that others are spilled first
        return self._serve(out, error)

    def restored(self, key: bytes, error: str = "") -> list[Instruction]:
        """Notes that a Restore was done; or failed, and the object is lost."""
        out: list[Instruction] = []
        stored = self._busy.pop(key)
        if self._objects.get(key) is not stored:
            self._clean_up(stored, out)
        elif error:
            self._drop(stored, out)
            out.append(Lost(key, f"it could not be read back from disk: {error}"))
        else:
            assert stored.offset is not None
            stored.state = "memory"
            stored.pins += stored.waiting
            out += [ObjectPinned(key, stored.offset, stored.nbytes)] * stored.waiting
            stored.waiting = 0
        return self._serve(out)

    # Room

    def _request_room(self, stored: _StoredObject) -> list[Instruction]:
        self._waiting.append(stored)
        return self._serve([]) if len(self._waiting) == 1 else []

    def _serve(self, out: list[Instruction], error: str = "") -> list[Instruction]:
        """Serves requests for room in order, or spills for them; `error`: why a spill failed."""
        while self._waiting:
            first = self._waiting[0]
            offset = self._allocator.allocate(first.nbytes)
            if offset is not None:
                self._waiting.popleft()
                self._place(first, offset, out)
            elif error:
                text = (
                    f"an object of {size_text(first.nbytes)} does not fit: moving others to disk "
                    f"failed: {error.rstrip('.')}. Make room on the disk, drop references to "
                    "objects, or give init(object_store_bytes=...) more."
                )
                self._refuse(first, text, out)
                error = ""
            elif any(map(self._will_be_free, self._busy.values())):
                break
            elif (victims := self._to_free(first, self._idle.values())) is not None:
                for victim in victims:
                    self._evict(victim, out)
            elif self._to_free(first, chain(self._idle.values(), self._unsealed())) is not None:
                break
            else:
                text = _in_use_text(first.nbytes, self._allocator.nbytes, self._pinned())
                self._refuse(first, text, out, pinned=True)
        return out

    def _place(self, stored: _StoredObject, offset: int, out: list[Instruction]) -> None:
        stored.offset = offset
        self._at[offset] = stored
        if stored.state == "creating":
            out.append(Placed(stored.key, offset, stored.nbytes))
        else:
            stored.state = "restoring"
            self._busy[stored.key] = stored
            out.append(Restore(stored.key, offset, stored.nbytes))

    def _refuse(
        self, stored: _StoredObject, reason: str, out: list[Instruction], pinned: bool = False
    ) -> None:
        self._waiting.popleft()
        refuse = Refuse(stored.key, reason, pinned)
        if stored.state == "creating":
            out.append(refuse)
            self._drop(stored, out)
        else:
            out.extend([refuse] * stored.waiting)
            stored.waiting = 0

    def _to_free(
        self, stored: _StoredObject, candidates: Iterable[_StoredObject]
    ) -> list[_StoredObject] | None:
        offsets = (candidate.offset for candidate in candidates if candidate.offset is not None)
        chosen = self._allocator.to_free(stored.nbytes, offsets)
        return None if chosen is None else [self._at[offset] for offset in chosen]

    def _evict(self, victim: _StoredObject, out: list[Instruction]) -> None:
        assert victim.offset is not None
        del self._idle[victim.key]
        if victim.on_disk:
            victim.state = "disk"
            self._free(victim)
        else:
            victim.state = "spilling"
            self._busy[victim.key] = victim
            out.append(Spill(victim.key, victim.offset, victim.nbytes))

    def _will_be_free(self, stored: _StoredObject) -> bool:
        """Returns whether its block will be free once the driver has reported."""
        return not stored.pins and (
            stored.state == "spilling" or self._objects.get(stored.key) is not stored
        )

    def _unsealed(self) -> Iterator[_StoredObject]:
        return (stored for stored in self._at.values() if stored.state == "creating")

    def _pinned(self) -> list[tuple[int, str]]:
        """Returns size and label of all objects that are pinned, or about to be."""
        return [
            (block.nbytes, block.label)
            for pinned in chain(self._objects.values(), self._gone.values())
            if pinned.pins or pinned.state == "restoring"
            for block in (*pinned.older, pinned)
            if block.offset is not None
        ]

    # The end of an object

    def _drop(self, stored: _StoredObject, out: list[Instruction]) -> None:
        """Takes an object out of the store; its memory and file go once they are unused."""
        key = stored.key
        del self._objects[key]
        self._idle.pop(key, None)
        if stored in self._waiting:
            self._waiting.remove(stored)
        if stored.state == "creating":
            self._free(stored)
        if stored.pins:
            self._gone[key] = stored
        if self._busy.get(key) is not stored:
            self._clean_up(stored, out)

    def _clean_up(self, stored: _StoredObject, out: list[Instruction]) -> None:
        if stored.on_disk:
            stored.on_disk = False
            self.spilled_bytes -= stored.nbytes
            out.append(Unlink(stored.key))
        if not stored.pins:
            self._free(stored)

    def _free(self, stored: _StoredObject) -> None:
        if stored.offset is not None:
            del self._at[stored.offset]
            self._allocator.free(stored.offset)
            stored.offset = None


def _in_use_text(nbytes: int, limit_bytes: int, pinned: list[tuple[int, str]]) -> str:
    total = sum(size for size, _ in pinned)
    largest = sorted(pinned, key=lambda pair: -pair[0])[:_NAMED_OBJECTS]
    names = ", ".join(f"{size_text(size)} {label}".rstrip() for size, label in largest)
    pieces = ", and what is left is in pieces" if total + nbytes <= limit_bytes else ""
    return (
        f"an object of {size_text(nbytes)} does not fit: of the object store's "
        f"{size_text(limit_bytes)}, {size_text(total)} are in use by {len(pinned)} "
        f"object{'s' * (len(pinned) != 1)} (the largest: {names}){pieces}. "
        "Drop the references to them, or give init(object_store_bytes=...) more."
    )


def size_text(nbytes: int) -> str:
    """Returns a number of bytes as text: 3.0 GB."""
    size = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
