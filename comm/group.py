"""Reducer groups: the GMIs that combine their gradients, and what each of them holds of it.

A `GroupSpec` is made once by the launcher and passed to every GMI, which joins with its rank. One
file per strategy stands below: `mpr` for several processes, `local` for one. Nothing here imports
torch, as the launcher must not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Protocol

from gmi_drl.runtime.memfd import Memfd

from .header import MAX_SIZE, header_bytes, write_header

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DEFAULT_TIMEOUT = timedelta(seconds=30)
ReduceOp = Literal["sum", "mean"]


class Reducer(Protocol):
    """One bucket: a vector of `numel` numbers a rank, combined over the ranks of a group.

    Every method is collective. On an error the contents are undefined and the group is over.
    """

    rank: int
    size: int
    numel: int
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

    ReduceTimeout, GroupMismatch, PeerLeft, GroupFinished or GroupClosed; after these the group is
    over. GroupReformed says that a rank's process has been replaced: call `reform`, make the
    buckets anew, agree with the others on where to go on, and go on.
    """

    rank: int
    size: int
    members: tuple[str, ...]  # by rank, as errors call them: "gmi 5, GPU 1"
    generation: int  # one higher each time that processes of the group were replaced
    joined: int  # the generation this process came with; 0 unless it replaces another

    @abstractmethod
    def bucket(self, name: str, numel: int, dtype: torch.dtype | None = None) -> Reducer:
        """A new bucket of `numel` float32 (default) or float64, all zeros.

        It exists as long as the group does; ask for it once and keep it.
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

    @property
    def size(self) -> int:
        return len(self.members)

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
            from .local import LocalGroup

            return LocalGroup(self.members[0])
        from .mpr import MprGroup

        return MprGroup(self.memfd, rank, self.members, timeout)


def create_group(members: Sequence[str]) -> GroupSpec:
    """A new group with one rank for each of `members`, which are named as errors shall name them.

    Its shared memory has no name and goes when the last process that holds it does.
    """
    size = len(members)
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"{size} members: a group has 1 to {MAX_SIZE}.")
    if size == 1:
        return GroupSpec(tuple(members), None)
    memfd = Memfd.create("gmi-drl-group", header_bytes(size))
    write_header(memfd.map(), size)
    return GroupSpec(tuple(members), memfd)


def solo_group(member: str = "this process") -> Group:
    """A group of one, for code that runs without a launcher."""
    return create_group([member]).join(0)
