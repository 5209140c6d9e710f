"""The shared group is the control plane of every strategy: one process of several in a group.

Membership, meetings, generations and the places of buckets are the same whatever moves the numbers.
Meetings agree on a new bucket before anybody makes the file longer, and it only grows.
"""

from __future__ import annotations

import contextlib
import mmap
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gmi_drl.comm.errors import CommError, GroupClosed, GroupMismatch, RingBroken
from gmi_drl.comm.group import tags as _tags
from gmi_drl.comm.group.barrier import YIELDS, Barrier, header_bytes
from gmi_drl.comm.group.group import Group, Reducer
from gmi_drl.comm.group.tags import describe, make_tag
from gmi_drl.runtime.store.alignment import round_up

from .bucket import SharedBucket, bucket_bytes
from .local import checked
from .strategies import REDUCERS

if TYPE_CHECKING:
    from .group_spec import GroupSpec
    from .rings import Rings

_PAGE: Final = mmap.PAGESIZE
_HUGE: Final = 2 << 20
_MAX_BUCKETS: Final = 1 << 16


class SharedGroup(Group):
    """One process of several that share the memory of `spec`."""

    def __init__(self, spec: GroupSpec, rank: int, timeout: timedelta) -> None:
        assert spec.memfd is not None
        self.rank, self.size, self.members = rank, spec.size, spec.members
        self.strategy, self.wire, self.mpl = spec.strategy, spec.wire, spec.mpl
        # Of this rank in MPL: its device, and its place among the ranks there.
        self.device, self.place = next(
            (device, ranks.index(rank)) for device, ranks in enumerate(self.mpl) if rank in ranks
        )
        self.directory = spec.directory
        self._names: list[str] = []  # by bucket
        self._memfd = spec.memfd
        self._end = header_bytes(self.size)
        self._barrier = Barrier(spec.memfd.map(0, self._end), rank, spec.members, timeout)
        self.generation = self.joined = self._barrier.generation
        self._calls = 0
        self._rings: dict[str, Rings] = {}  # by kind of memory
        self._at_end: list[Callable[[], None]] = []

    def bucket(
        self, name: str, numel: int, dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Reducer:  # fmt: skip
        numel, torch_dtype, device = checked(name, numel, dtype, device)
        index = len(self._names)
        if index == _MAX_BUCKETS:
            raise ValueError(f"bucket {name!r}: a group has at most {_MAX_BUCKETS}. Reuse some.")
        kind = np.dtype("f4" if torch_dtype == torch.float32 else "f8")
        on_device = "" if device.type == "cpu" else f" on {device.type}"
        description = f"bucket {name!r} of {numel} {kind.name}{on_device}"
        self._barrier.write_text(description)
        self.meet(make_tag(_tags.CREATE, index, zlib.crc32(description.encode())))
        memory = self._place(bucket_bytes(self, numel, kind))
        self._names.append(repr(name))
        classes = REDUCERS[self.strategy]
        host: SharedBucket = classes.load(on_gpu=False)(self, index, numel, kind, memory)
        if device.type == "cpu":
            return host
        reducer: Reducer = classes.load(on_gpu=True)(host, device)
        return reducer

    def _place(self, nbytes: int) -> memoryview:
        start = round_up(self._end, _HUGE if nbytes >= _HUGE else _PAGE)
        self._end = start + nbytes
        if self._memfd.size < self._end:
            self._memfd.resize(self._end)
        memory = self._memfd.map(start, nbytes)
        if nbytes >= _HUGE and isinstance(memory.obj, mmap.mmap):
            with contextlib.suppress(OSError):  # a kernel that knows no huge pages here
                memory.obj.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def barrier(self) -> None:
        self._calls += 1
        self.meet(make_tag(_tags.BARRIER, count=self._calls))

    def exchange(self, value: int) -> list[int]:
        self._calls += 1
        self.meet(make_tag(_tags.EXCHANGE, count=self._calls), value)
        return self._barrier.values()

    def exchange_text(self, text: str) -> list[str]:
        """Exchanges a text of each rank, by rank, of 568 bytes at most."""
        self._calls += 1
        tag = make_tag(_tags.EXCHANGE, count=self._calls)
        self._barrier.write_text(text)
        self.meet(tag)
        texts = [self._barrier.read_text(rank) for rank in range(self.size)]
        self.meet(tag | _tags.PHASE_2)  # before that nobody writes another one
        return texts

    def reform(self) -> bool:
        changed = self._barrier.reform()
        if changed:
            self._release()
            self._names = []
            self._end, self._calls = header_bytes(self.size), 0
            self.generation = self._barrier.generation
        return changed

    def finish(self, outcome: str) -> None:
        self._barrier.finish(outcome)
        self._release()

    def close(self) -> None:
        self._barrier.leave(GroupClosed("the group was closed"))
        self._release()

    # For the reducers ----------------------------------------------------------------------

    def meet(self, tag: int, value: int = 0, yields: int = YIELDS) -> None:
        """Meets all ranks; GroupMismatch on every one of them unless all brought this tag."""
        if self._barrier.meet(tag, value, yields):
            return
        calls = [self._tag_text(rank, tag) for rank, tag in enumerate(self._barrier.tags())]
        raise self._leave_with(GroupMismatch(calls, self.members))

    def meet_after(self, tag: int, fault: str | None) -> None:
        """Meets all ranks after something that can fail on some of them.

        Where it did because a rank is gone, that rank is waited for here, as at any meeting.
        RingBroken on every rank if all are there and one brings a `fault`; PeerLeft on one that
        comes so late that others have given up waiting for it.
        """
        if fault is not None:
            self._barrier.write_text(fault)
        self.meet(tag, int(fault is not None))
        failed = [rank for rank, value in enumerate(self._barrier.values()) if value]
        if failed:
            self._barrier.check_none_gave_up()
            rank = failed[0]
            text = self._barrier.read_text(rank)
            raise self._leave_with(RingBroken(describe(tag), rank, self.members[rank], text))

    def leave(self, error: CommError) -> None:
        """Leaves the group because of an error, which the others are told."""
        self._barrier.leave(error)

    def renew(self) -> None:
        """Opens the next generation; between two meetings. Everybody's next call raises it."""
        self._barrier.renew()

    def give_up(self, error: BaseException) -> None:
        """Leaves the group in the middle of a call, so that nobody waits for this rank."""
        reason = f"a reduction was given up: {type(error).__name__} {error}"
        self._barrier.leave(GroupClosed(reason))

    def is_disturbed(self) -> bool:
        """Tells whether a rank has left or was replaced: a call under way cannot complete."""
        return self._barrier.is_disturbed()

    @property
    def timeout_s(self) -> float:
        return self._barrier.timeout_s

    def rings(self, kind: str, ranks_of: Mapping[str, Sequence[int]]) -> Rings:
        """Returns this rank's rings for `kind`, "cpu" or "cuda". Collective when called first.

        Made once a generation and kept. Every rank passes the same `ranks_of`.
        """
        if kind not in self._rings:
            from .rings import Rings

            self._rings[kind] = Rings(self, kind, ranks_of)
            self._rings[kind].build()
        return self._rings[kind]

    def at_end(self, release: Callable[[], None]) -> None:
        """Calls `release` when this generation's buckets are dead."""
        self._at_end.append(release)

    def _release(self) -> None:
        for rings in self._rings.values():
            rings.end()
        self._rings = {}
        while self._at_end:
            self._at_end.pop()()

    def _leave_with(self, error: CommError) -> CommError:
        """Leaves the group because of `error`, which all ranks find, and returns it."""
        self._barrier.leave(error, announce=False)
        return error

    def _tag_text(self, rank: int, tag: int) -> str:
        if tag & 7 == _tags.CREATE:
            return self._barrier.read_text(rank)
        return describe(tag, self._names)
