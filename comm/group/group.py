"""Reducer groups: the GMIs that combine their gradients, and what each of them holds of it.

A `GroupSpec` is made once by the launcher and passed to every GMI, which joins with its rank. One
file per strategy stands below: `mpr`, `mrr`, `har` and `ipc` for several processes, `local` for
one. Nothing here imports torch, as the launcher must not.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from gmi_drl.placement.reduction import STRATEGIES, Strategy, shape_fault
from gmi_drl.runtime.store.memfd import Memfd

from .header import MAX_SIZE, header_bytes, write_header

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DEFAULT_TIMEOUT = timedelta(seconds=30)
ReduceOp = Literal["sum", "mean"]
Wire = Literal["fp32", "bf16"]
_WIRES: Final = ("fp32", "bf16")


class Reducer(Protocol):
    """One bucket: a vector of `numel` numbers a rank, combined over the ranks of a group.

    Every method is collective. On an error the contents are undefined and the group is over.
    """

    rank: int
    size: int
    numel: int
    # Both lie on the bucket's device; on the CPU in memory that the ranks share.
    buffer: Tensor  # [numel] this rank's own: write contributions here; gradients are views of it
    result: Tensor  # [numel] shared, do not write; valid after reduce() until this rank's next call

    def reduce(self, op: ReduceOp = "mean") -> Tensor:
        """`result` [numel]: all ranks' buffers combined, the same bits on every rank.

        When it returns, `buffer` may be written again.
        """

    def gather(self) -> Tensor:
        """Every rank's buffer [size, numel], read in place: valid until this rank's next gather.

        When it returns, `buffer` may be written again.
        """

    def broadcast(self, src: int = 0) -> Tensor:
        """`result` [numel]: what rank `src` has in its buffer."""

    def barrier(self) -> None:
        """Returns when every rank has called it."""


class Group(ABC):
    """This process as one rank of a reducer group. All methods are collective, and raise

    ReduceTimeout, GroupMismatch, RingBroken, PeerLeft, GroupFinished or GroupClosed; after these
    the group is over. GroupReformed says that a rank's process has been replaced: call `reform`,
    make the buckets anew, agree with the others on where to go on, and go on.
    """

    rank: int
    size: int
    members: tuple[str, ...]  # by rank, as errors call them: "gmi 5, GPU 1"
    generation: int  # one higher each time that processes of the group were replaced
    joined: int  # the generation this process came with; 0 unless it replaces another

    @abstractmethod
    def bucket(
        self,
        name: str,
        numel: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Reducer:
        """A new bucket of `numel` float32 (default) or float64, all zeros, on the CPU or `device`.

        It exists as long as the group does, and until it is re-formed; ask for it once and keep it.
        Calls on a bucket of a GPU run on that device's current stream.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every rank has called it."""

    @abstractmethod
    def exchange(self, value: int) -> list[int]:
        """One unsigned 64-bit number of each rank, by rank."""

    @abstractmethod
    def reform(self) -> None:
        """Returns when every rank has called it after GroupReformed; at once if there was none.

        Buckets of before are dead, and calls on them raise GroupReformed: nothing may be written to
        their tensors any more.
        """

    @abstractmethod
    def finish(self, outcome: str) -> None:
        """Leaves the group with its work done; not collective.

        A rank that has died before it got here, and so cannot meet this one again, is told
        `outcome` (568 bytes at most) by GroupFinished.
        """

    @abstractmethod
    def close(self) -> None:
        """Leaves the group, so that those who wait for this rank know; not collective."""


@dataclass(frozen=True)
class GroupSpec:
    """What a GMI needs to join a group; passes through the arguments of an actor call."""

    members: tuple[str, ...]
    memfd: Memfd | None  # None for a group of one
    devices: tuple[int, ...]  # by rank
    strategy: Strategy = "mpr"
    wire: Wire = "fp32"
    directory: Path | None = None  # of this group alone, made and removed by its rings

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def mpl(self) -> tuple[tuple[int, ...], ...]:
        """Ranks by device, in ascending order (GMI-DRL's MPL); devices without one are left out."""
        return _mpl(self.devices)

    def join(self, rank: int, timeout: timedelta = DEFAULT_TIMEOUT) -> Group:
        """This process as `rank`; waits for nobody. `timeout` holds for every later wait.

        When the process that had joined as `rank` is gone, this one takes its place: everybody's
        next call, its own included, raises GroupReformed.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank}: this group has ranks 0 to {self.size - 1}.")
        if timeout <= timedelta(0):
            raise ValueError(f"timeout {timeout}: must be more than nothing. Use e.g. 30 s.")
        if self.memfd is None:
            from gmi_drl.comm.reducers.local import LocalGroup

            return LocalGroup(self.members[0])
        from .shared import SharedGroup

        return SharedGroup(self, rank, timeout)


def create_group(
    members: Sequence[str],
    devices: Sequence[int] | None = None,
    *,
    strategy: Strategy = "mpr",
    wire: Wire = "fp32",
    directory: Path | str | None = None,
) -> GroupSpec:
    """A new group with one rank for each of `members`, which are named as errors shall name them.

    `devices` has the index of each rank's device (all on one by default). `directory` is a private
    folder on this host, where the ranks of rings find each other (mrr, har). A group of one is
    local whatever is asked for. Its shared memory has no name and goes when the last process that
    holds it does. ValueError when the strategy cannot serve these devices.
    """
    size = len(members)
    devices = [0] * size if devices is None else devices
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"{size} members: a group has 1 to {MAX_SIZE}.")
    if len(devices) != size:
        raise ValueError(f"{len(devices)} devices for {size} members: give one for each.")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy {strategy!r}: use {', '.join(STRATEGIES)}.")
    if wire not in _WIRES:
        raise ValueError(f"wire {wire!r}: use {' or '.join(_WIRES)}.")
    if size == 1:
        return GroupSpec(tuple(members), None, tuple(devices), "local", wire)
    if fault := shape_fault(strategy, _mpl(devices)):
        raise ValueError(f"strategy {strategy}: {fault[0]}. {fault[1]}")
    own = None
    if strategy in ("mrr", "har"):
        if directory is None:
            raise ValueError(
                f"strategy {strategy}: no directory, and its rings meet in one. Pass a private one."
            )
        own = Path(directory) / f"rings-{uuid.uuid4().hex[:8]}"
    memfd = Memfd.create("gmi-drl-group", header_bytes(size))
    write_header(memfd.map(), size)
    return GroupSpec(tuple(members), memfd, tuple(devices), strategy, wire, own)


def solo_group(member: str = "this process") -> Group:
    """A group of one, for code that runs without a launcher."""
    return create_group([member]).join(0)


def _mpl(devices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(rank for rank, device in enumerate(devices) if device == index)
        for index in sorted(set(devices))
    )
