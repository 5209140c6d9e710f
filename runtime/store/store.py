"""The object store's decisions: which object lies where, which goes to disk, who waits for room.

A pure state machine: each method tells the Store what happened and returns what the engine has to
do now, in this order. The Store does no I/O and knows no process.

An object is *creating* from `create` to `seal`, then in *memory*; when room is needed and nobody
has it pinned it is *spilling*, then on *disk*, and *restoring* when somebody pins it again. Sealed
objects never change, so a restored one keeps its copy on disk: it costs nothing to drop it from
memory a second time.

Requests for room are served in the order they came. The first one gets the space of the least
recently used objects, of those only that lie in the hole it will take. If not even all of them
would do, it waits as long as objects that are being written would do with them, and is refused
otherwise: what is pinned may stay so for ever, and how often to try again is the engine's to say.
(So whoever waits for a Place must not keep another one unsealed meanwhile.)

An object that is deleted or lost while pinned is out of the store at once, and its block is free
when the last pin is gone, even if the key was created again: `unpin` does not say which of the two
it means, therefore none of both may be moved until all pins of the key are gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

from .allocator import Allocator, block_bytes
from .messages import (
    Instruction,
    Lost,
    Pinned,
    Place,
    Refuse,
    Restore,
    Spill,
    Unlink,
    in_use_text,
    spill_failed_text,
    too_large_text,
)

State = Literal["creating", "memory", "spilling", "disk", "restoring"]


class _Object:
    __slots__ = (
        "deleted",
        "key",
        "label",
        "nbytes",
        "offset",
        "older",
        "on_disk",
        "pins",
        "state",
        "waiting",
    )

    def __init__(self, key: bytes, nbytes: int, label: str) -> None:
        self.key = key
        self.nbytes = nbytes
        self.label = label
        self.state: State = "creating"
        self.offset: int | None = None
        self.pins = 0
        self.waiting = 0  # pins that were not answered yet
        self.on_disk = False  # there is a copy on disk, whatever the state
        self.deleted = False
        self.older: list[_Object] = []  # what had this key before and may still be looked at


class Store:
    """Room for `limit_bytes` of objects in memory, and the rest on disk."""

    def __init__(self, limit_bytes: int) -> None:
        self._allocator = Allocator(limit_bytes)
        self._objects: dict[bytes, _Object] = {}
        self._gone: dict[bytes, _Object] = {}  # no longer in the store, and pinned
        self._idle: dict[bytes, _Object] = {}  # may be spilled; least recently used first
        self._busy: dict[bytes, _Object] = {}  # on the way to disk or back
        self._waiting: deque[_Object] = deque()  # for room
        self._at: dict[int, _Object] = {}  # by offset
        self.spilled_bytes = 0  # on disk

    @property
    def used_bytes(self) -> int:
        """Bytes of memory in use, with what rounding to lines and pages adds."""
        return self._allocator.used_bytes

    def holes(self) -> Iterable[tuple[int, int]]:
        """(offset, end) of all memory that is free."""
        return self._allocator.holes()

    def __contains__(self, key: bytes) -> bool:
        return key in self._objects

    def state(self, key: bytes) -> State | None:
        """Where the object is; None if the store has no such object (any more)."""
        held = self._objects.get(key)
        return held.state if held else None

    # What processes ask for

    def create(self, key: bytes, nbytes: int, label: str = "") -> list[Instruction]:
        """Room for a new object; `label` says who made it. Answered by a Place or a Refuse."""
        if key in self._objects:
            raise ValueError(f"object {key.hex()} exists already. Delete it first.")
        if block_bytes(nbytes) > self._allocator.nbytes:
            return [Refuse(key, too_large_text(nbytes, self._allocator.nbytes))]
        return self._ask(self._new(key, nbytes, label))

    def create_on_disk(self, key: bytes, nbytes: int, label: str = "") -> None:
        """A new object that is written to its file, after `create` was refused."""
        new = self._new(key, nbytes, label)
        new.on_disk = True
        self.spilled_bytes += nbytes

    def _new(self, key: bytes, nbytes: int, label: str) -> _Object:
        new = self._objects[key] = _Object(key, nbytes, label)
        gone = self._gone.pop(key, None)
        if gone is not None:
            new.pins, new.older = gone.pins, [*gone.older, gone]
        return new

    def seal(self, key: bytes) -> list[Instruction]:
        """Its bytes are written, and will not change. Nothing happens if it was lost meanwhile."""
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
        """Its writer died before `seal`, with or without an answer to `create`.

        Nothing happens if there is no such object, or if it is sealed.
        """
        out: list[Instruction] = []
        unfinished = self._objects.get(key)
        if unfinished is None or unfinished.state != "creating":
            return out
        self._drop(unfinished, out)
        return self._serve(out)

    def pin(self, key: bytes) -> list[Instruction]:
        """Somebody wants to look at it. Each call is answered by a Pinned or a Refuse of its own,
        or all that wait for this object by one Lost.
        """
        wanted = self._objects.get(key)
        if wanted is None or wanted.state == "creating":
            raise ValueError(f"object {key.hex()} cannot be pinned. Wait until it is sealed.")
        if wanted.state in ("memory", "spilling"):
            assert wanted.offset is not None
            wanted.pins += 1
            self._idle.pop(key, None)
            return [Pinned(key, wanted.offset, wanted.nbytes)]
        wanted.waiting += 1
        return self._ask(wanted) if wanted.state == "disk" and wanted.waiting == 1 else []

    def unpin(self, key: bytes) -> list[Instruction]:
        """One pin of the key is gone."""
        seen = self._objects.get(key) or self._gone.get(key)
        if seen is None or not seen.pins:
            raise ValueError(f"object {key.hex()} is not pinned. Unpin once for each Pinned.")
        seen.pins -= 1
        if seen.pins:
            return []
        for old in seen.older:
            self._free(old)
        seen.older = []
        if self._gone.pop(key, None):
            if self._busy.get(key) is not seen:
                self._free(seen)
        elif seen.state == "memory":
            self._idle[key] = seen
        return self._serve([])

    def delete(self, key: bytes) -> list[Instruction]:
        """Nobody refers to it any more. Nothing happens if there is no such object."""
        out: list[Instruction] = []
        unwanted = self._objects.get(key)
        if unwanted is None:
            return out
        if unwanted.state == "creating":
            unwanted.deleted = True  # its writer is still at work
            return out
        refused = [Refuse(key, "it was deleted while somebody waited for it.")] * unwanted.waiting
        out.extend(refused)
        self._drop(unwanted, out)
        return self._serve(out)

    def lose(self, keys: Iterable[bytes]) -> list[Instruction]:
        """These are lost, wherever they are: a Lost for each that the store has."""
        out: list[Instruction] = []
        for key in keys:
            lost = self._objects.get(key)
            if lost is not None:
                self._drop(lost, out)
                out.append(Lost(key, "the device that had it was lost."))
        return self._serve(out)

    # What the engine reports

    def spilled(self, key: bytes, error: str = "") -> list[Instruction]:
        """A Spill was done; or failed, and left no file behind."""
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
        """A Restore was done; or failed, and the object is lost."""
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
            pinned = Pinned(key, read.offset, read.nbytes)
            out.extend([pinned] * read.pins)
        return self._serve(out)

    # Room

    def _ask(self, wanted: _Object) -> list[Instruction]:
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
                self._refuse(first, spill_failed_text(first.nbytes, error), out)
                error = ""
            elif any(map(self._will_be_free, self._busy.values())):
                break
            elif (victims := self._to_free(first, self._idle.values())) is not None:
                for victim in victims:
                    self._push_out(victim, out)
            elif self._to_free(first, chain(self._idle.values(), self._unsealed())) is not None:
                break
            else:
                text = in_use_text(first.nbytes, self._allocator.nbytes, self._pinned())
                self._refuse(first, text, out, pinned=True)
        return out

    def _put(self, wanted: _Object, offset: int, out: list[Instruction]) -> None:
        wanted.offset = offset
        self._at[offset] = wanted
        if wanted.state == "creating":
            out.append(Place(wanted.key, offset, wanted.nbytes))
        else:
            wanted.state = "restoring"
            self._busy[wanted.key] = wanted
            out.append(Restore(wanted.key, offset, wanted.nbytes))

    def _refuse(
        self, first: _Object, reason: str, out: list[Instruction], pinned: bool = False
    ) -> None:
        self._waiting.popleft()
        refuse = Refuse(first.key, reason, pinned)
        if first.state == "creating":
            out.append(refuse)
            self._drop(first, out)
        else:
            out.extend([refuse] * first.waiting)
            first.waiting = 0

    def _to_free(self, wanted: _Object, candidates: Iterable[_Object]) -> list[_Object] | None:
        offsets = (other.offset for other in candidates if other.offset is not None)
        chosen = self._allocator.to_free(wanted.nbytes, offsets)
        return None if chosen is None else [self._at[offset] for offset in chosen]

    def _push_out(self, victim: _Object, out: list[Instruction]) -> None:
        assert victim.offset is not None
        del self._idle[victim.key]
        if victim.on_disk:
            victim.state = "disk"
            self._free(victim)
        else:
            victim.state = "spilling"
            self._busy[victim.key] = victim
            out.append(Spill(victim.key, victim.offset, victim.nbytes))

    def _will_be_free(self, busy: _Object) -> bool:
        """Whether its block is free when the engine has reported."""
        return not busy.pins and (
            busy.state == "spilling" or self._objects.get(busy.key) is not busy
        )

    def _unsealed(self) -> Iterator[_Object]:
        return (other for other in self._at.values() if other.state == "creating")

    def _pinned(self) -> list[tuple[int, str]]:
        """Size and label of all that cannot be moved because somebody looks at it, or will."""
        found = []
        for seen in chain(self._objects.values(), self._gone.values()):
            if seen.pins or seen.state == "restoring":
                both = (*seen.older, seen)
                found += [(one.nbytes, one.label) for one in both if one.offset is not None]
        return found

    # The end of an object

    def _drop(self, unwanted: _Object, out: list[Instruction]) -> None:
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

    def _clean_up(self, unwanted: _Object, out: list[Instruction]) -> None:
        if unwanted.on_disk:
            unwanted.on_disk = False
            self.spilled_bytes -= unwanted.nbytes
            out.append(Unlink(unwanted.key))
        if not unwanted.pins:
            self._free(unwanted)

    def _free(self, unwanted: _Object) -> None:
        if unwanted.offset is not None:
            del self._at[unwanted.offset]
            self._allocator.free(unwanted.offset)
            unwanted.offset = None
