"""Decides which object lies where, which goes to disk (spilling), and who waits for room.

A pure state machine: each method says what happened, and returns what the driver has to do now, in
this order. An object is *creating* until `seal`, then in *memory*; when room is needed and nobody
has it pinned it is *spilling*, then on *disk*, and *restoring* when somebody pins it again. Sealed
objects never change, so a restored one keeps its copy on disk.

Requests for room are served in the order they came. The first one gets the space of the least
recently used objects that lie in the hole it will take. If not even all of them would do, it waits
as long as objects that are being written would do with them, and is refused otherwise. So whoever
waits for a Placed must not keep another one unsealed.

An object that is deleted or lost while pinned is out of the store at once, its block when the last
pin is gone: of its key, if that was created again, as `unpin` does not say which of the two it
means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

from .allocator import Allocator, block_bytes

State = Literal["creating", "memory", "spilling", "disk", "restoring"]

_NAMED_OBJECTS: Final = 5  # in the text of a refusal


@dataclass(frozen=True)
class _Block:
    key: bytes
    offset: int
    nbytes: int


class Placed(_Block):
    """Answers `create`: its writer may write here, until `seal` or `abort`."""


class ObjectPinned(_Block):
    """Answers one `pin`: the object is here, and stays here until `unpin`."""


class Spill(_Block):
    """Write the block to the object's file, then call `spilled`."""


class Restore(_Block):
    """Read the object's file into the block, then call `restored`."""


@dataclass(frozen=True)
class Refuse:
    """Answers `create` or one `pin`: there is no room, or (`pinned`) not while others look."""

    key: bytes
    reason: str
    pinned: bool = False


@dataclass(frozen=True)
class Lost:
    """The object is no more; answers all that wait for it."""

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
    older: Sequence[_StoredObject] = ()  # what had this key before and may still be looked at


class ObjectStore:
    """Keeps `limit_bytes` of objects in memory, and the rest on disk."""

    def __init__(self, limit_bytes: int) -> None:
        self._allocator = Allocator(limit_bytes)
        self._objects: dict[bytes, _StoredObject] = {}
        self._gone: dict[bytes, _StoredObject] = {}  # no longer in the store, and pinned
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
        held = self._objects.get(key)
        return held.state if held else None

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
        return self._ask(self._new(key, nbytes, label))

    def create_on_disk(self, key: bytes, nbytes: int, label: str = "") -> None:
        """Adds an object that is written to its file, after `create` was refused."""
        new = self._new(key, nbytes, label)
        new.on_disk = True
        self.spilled_bytes += nbytes

    def _new(self, key: bytes, nbytes: int, label: str) -> _StoredObject:
        new = self._objects[key] = _StoredObject(key, nbytes, label)
        gone = self._gone.pop(key, None)
        if gone is not None:
            new.pins, new.older = gone.pins, [*gone.older, gone]
        return new

    def seal(self, key: bytes) -> list[Instruction]:
        """Notes that its bytes are written; nothing happens if it was lost meanwhile."""
        out: list[Instruction] = []
        sealed = self._objects.get(key)
        if sealed is None or sealed.state != "creating":
            return out
        if sealed.offset is None and not sealed.on_disk:  # it waits for room
            return out
        sealed.state = "disk" if sealed.offset is None else "memory"
        if sealed.deleted:
            self._drop(sealed, out)
        elif sealed.state == "memory" and not sealed.pins:
            self._idle[key] = sealed
        return self._serve(out)

    def abort(self, key: bytes) -> list[Instruction]:
        """Drops an object whose writer died; nothing happens if it is sealed, or not there."""
        out: list[Instruction] = []
        unfinished = self._objects.get(key)
        if unfinished is None or unfinished.state != "creating":
            return out
        self._drop(unfinished, out)
        return self._serve(out)

    def pin(self, key: bytes) -> list[Instruction]:
        """Pins it in memory; answered by ObjectPinned or Refuse for each pin, or by one Lost."""
        wanted = self._objects.get(key)
        if wanted is None or wanted.state == "creating":
            raise ValueError(f"object {key.hex()} cannot be pinned. Wait until it is sealed.")
        if wanted.state in ("memory", "spilling"):
            assert wanted.offset is not None
            wanted.pins += 1
            self._idle.pop(key, None)
            return [ObjectPinned(key, wanted.offset, wanted.nbytes)]
        wanted.waiting += 1
        return self._ask(wanted) if wanted.state == "disk" and wanted.waiting == 1 else []

    def unpin(self, key: bytes) -> list[Instruction]:
        """Takes back one pin of the key."""
        seen = self._objects.get(key) or self._gone.get(key)
        if seen is None or not seen.pins:
            raise ValueError(f"object {key.hex()} is not pinned. Unpin once for each ObjectPinned.")
        seen.pins -= 1
        if seen.pins:
            return []
        for old in seen.older:
            self._free(old)
        seen.older = ()
        if self._gone.pop(key, None):
            if self._busy.get(key) is not seen:
                self._free(seen)
        elif seen.state == "memory":
            self._idle[key] = seen
        return self._serve([])

    def delete(self, key: bytes) -> list[Instruction]:
        """Drops an object that nobody refers to any more, if there is one."""
        out: list[Instruction] = []
        unwanted = self._objects.get(key)
        if unwanted is None:
            return out
        if unwanted.state == "creating":
            unwanted.deleted = True  # its writer is still at work
            return out
        out += [Refuse(key, "it was deleted while somebody waited for it.")] * unwanted.waiting
        self._drop(unwanted, out)
        return self._serve(out)

    # What the driver reports

    def spilled(self, key: bytes, error: str = "") -> list[Instruction]:
        """Notes that a Spill was done; or failed, and left no file behind."""
        out: list[Instruction] = []
        copied = self._busy.pop(key)
        if not error:
            copied.on_disk = True
            self.spilled_bytes += copied.nbytes
        if self._objects.get(key) is not copied:
            self._clean_up(copied, out)
        elif not error and not copied.pins:
            copied.state = "disk"
            self._free(copied)
        else:
            copied.state = "memory"
            if not copied.pins:
                self._idle[key] = copied  # as if just used: next time others are tried first
        return self._serve(out, error)

    def restored(self, key: bytes, error: str = "") -> list[Instruction]:
        """Notes that a Restore was done; or failed, and the object is lost."""
        out: list[Instruction] = []
        read = self._busy.pop(key)
        if self._objects.get(key) is not read:
            self._clean_up(read, out)
        elif error:
            self._drop(read, out)
            out.append(Lost(key, f"it could not be read back from disk: {error}"))
        else:
            assert read.offset is not None
            read.state, read.pins, read.waiting = "memory", read.waiting, 0
            out += [ObjectPinned(key, read.offset, read.nbytes)] * read.pins
        return self._serve(out)

    # Room

    def _ask(self, wanted: _StoredObject) -> list[Instruction]:
        self._waiting.append(wanted)
        return self._serve([]) if len(self._waiting) == 1 else []

    def _serve(self, out: list[Instruction], error: str = "") -> list[Instruction]:
        """Gives room to those who wait, or makes some; `error` says why that failed just now."""
        while self._waiting:
            first = self._waiting[0]
            offset = self._allocator.allocate(first.nbytes)
            if offset is not None:
                self._waiting.popleft()
                self._put(first, offset, out)
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
                    self._push_out(victim, out)
            elif self._to_free(first, chain(self._idle.values(), self._unsealed())) is not None:
                break
            else:
                text = _in_use_text(first.nbytes, self._allocator.nbytes, self._pinned())
                self._refuse(first, text, out, pinned=True)
        return out

    def _put(self, wanted: _StoredObject, offset: int, out: list[Instruction]) -> None:
        wanted.offset = offset
        self._at[offset] = wanted
        if wanted.state == "creating":
            out.append(Placed(wanted.key, offset, wanted.nbytes))
        else:
            wanted.state = "restoring"
            self._busy[wanted.key] = wanted
            out.append(Restore(wanted.key, offset, wanted.nbytes))

    def _refuse(
        self, first: _StoredObject, reason: str, out: list[Instruction], pinned: bool = False
    ) -> None:
        self._waiting.popleft()
        refuse = Refuse(first.key, reason, pinned)
        if first.state == "creating":
            out.append(refuse)
            self._drop(first, out)
        else:
            out.extend([refuse] * first.waiting)
            first.waiting = 0

    def _to_free(
        self, wanted: _StoredObject, candidates: Iterable[_StoredObject]
    ) -> list[_StoredObject] | None:
        offsets = (other.offset for other in candidates if other.offset is not None)
        chosen = self._allocator.to_free(wanted.nbytes, offsets)
        return None if chosen is None else [self._at[offset] for offset in chosen]

    def _push_out(self, victim: _StoredObject, out: list[Instruction]) -> None:
        assert victim.offset is not None
        del self._idle[victim.key]
        if victim.on_disk:
            victim.state = "disk"
            self._free(victim)
        else:
            victim.state = "spilling"
            self._busy[victim.key] = victim
            out.append(Spill(victim.key, victim.offset, victim.nbytes))

    def _will_be_free(self, busy: _StoredObject) -> bool:
        """Returns whether its block is free when the driver has reported."""
        return not busy.pins and (
            busy.state == "spilling" or self._objects.get(busy.key) is not busy
        )

    def _unsealed(self) -> Iterator[_StoredObject]:
        return (other for other in self._at.values() if other.state == "creating")

    def _pinned(self) -> list[tuple[int, str]]:
        """Returns size and label of all that somebody looks at, or will."""
        return [
            (each.nbytes, each.label)
            for pinned in chain(self._objects.values(), self._gone.values())
            if pinned.pins or pinned.state == "restoring"
            for each in (*pinned.older, pinned)
            if each.offset is not None
        ]

    # The end of an object

    def _drop(self, unwanted: _StoredObject, out: list[Instruction]) -> None:
        """Takes it out of the store; memory and file go when nobody uses them any more."""
        key = unwanted.key
        del self._objects[key]
        self._idle.pop(key, None)
        if unwanted in self._waiting:
            self._waiting.remove(unwanted)
        if unwanted.state == "creating":
            self._free(unwanted)
        if unwanted.pins:
            self._gone[key] = unwanted
        if self._busy.get(key) is not unwanted:
            self._clean_up(unwanted, out)

    def _clean_up(self, unwanted: _StoredObject, out: list[Instruction]) -> None:
        if unwanted.on_disk:
            unwanted.on_disk = False
            self.spilled_bytes -= unwanted.nbytes
            out.append(Unlink(unwanted.key))
        if not unwanted.pins:
            self._free(unwanted)

    def _free(self, unwanted: _StoredObject) -> None:
        if unwanted.offset is not None:
            del self._at[unwanted.offset]
            self._allocator.free(unwanted.offset)
            unwanted.offset = None


def _in_use_text(nbytes: int, limit_bytes: int, pinned: list[tuple[int, str]]) -> str:
    total = sum(size for size, _ in pinned)
    largest = sorted(pinned, key=lambda one: -one[0])[:_NAMED_OBJECTS]
    named = ", ".join(f"{size_text(size)} {label}".rstrip() for size, label in largest)
    pieces = ", and what is left is in pieces" if total + nbytes <= limit_bytes else ""
    return (
        f"an object of {size_text(nbytes)} does not fit: of the object store's "
        f"{size_text(limit_bytes)}, {size_text(total)} are in use by {len(pinned)} "
        f"object{'s' * (len(pinned) != 1)} (the largest: {named}){pieces}. "
        "Drop the references to them, or give init(object_store_bytes=...) more."
    )


def size_text(nbytes: int) -> str:
    """Returns a number of bytes as people read it: 3.0 GB."""
    size = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
