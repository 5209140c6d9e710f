"""What the object store asks of the engine, and how it says that there is no room."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 5  # objects that a text names


@dataclass(frozen=True, slots=True)
class Place:
    """Answers `create`: its writer may write here, until `seal` or `abort`."""

    key: bytes
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """Answers one `pin`: the object is here, and stays here until `unpin`."""

    key: bytes
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answers `create` or one `pin`: there is no room, or (`pinned`) not while others look."""

    key: bytes
    reason: str
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The object is no more; answers all that wait for it."""

    key: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Spill:
    """Write the block to the object's file, then call `spilled`."""

    key: bytes
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Read the object's file into the block, then call `restored`."""

    key: bytes
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Unlink:
    """Delete the object's file."""

    key: bytes


Instruction = Place | Pinned | Refuse | Lost | Spill | Restore | Unlink


def too_large_text(nbytes: int, limit_bytes: int) -> str:
    """The object is larger than the whole store."""
    return (
        f"an object of {size_text(nbytes)} does not fit: the object store has "
        f"{size_text(limit_bytes)}. Give init(object_store_bytes=...) more."
    )


def in_use_text(nbytes: int, limit_bytes: int, pinned: list[tuple[int, str]]) -> str:
    """The rest of the store is pinned, by these sizes and labels."""
    total = sum(size for size, _ in pinned)
    largest = sorted(pinned, key=lambda one: -one[0])[:_SHOWN]
    named = ", ".join(f"{size_text(size)} {label}".rstrip() for size, label in largest)
    pieces = ", and what is left is in pieces" if total + nbytes <= limit_bytes else ""
    return (
        f"an object of {size_text(nbytes)} does not fit: of the object store's "
        f"{size_text(limit_bytes)}, {size_text(total)} are in use by {len(pinned)} "
        f"object{'s' * (len(pinned) != 1)} (the largest: {named}){pieces}. "
        "Drop the references to them, or give init(object_store_bytes=...) more."
    )


def spill_failed_text(nbytes: int, error: str) -> str:
    """Others could not be moved to disk."""
    return (
        f"an object of {size_text(nbytes)} does not fit: moving others to disk failed: "
        f"{error.rstrip('.')}. Make room on the disk, drop references to objects, "
        "or give init(object_store_bytes=...) more."
    )


def size_text(nbytes: int) -> str:
    """A number of bytes as people read it: 3.0 GB."""
    size = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
