"""Defines reducer groups, GMIs that combine their gradients, and their buckets.

Nothing here imports torch, as the launcher must not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DEFAULT_TIMEOUT = timedelta(seconds=30)
ReduceOp = Literal["sum", "mean"]
Wire = Literal["fp32", "bf16"]
WIRES: Final[tuple[Wire, ...]] = ("fp32", "bf16")


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
        """Returns `result` [numel]: all ranks' buffers combined, the same bits on every rank.

        When it returns, `buffer` may be written again.
        """

    def gather(self) -> Tensor:
        """Returns every rank's buffer [size, numel] in place, valid until this rank's next gather.

        When it returns, `buffer` may be written again.
        """

    def broadcast(self, src: int = 0) -> Tensor:
        """Returns `result` [numel]: what rank `src` has in its buffer."""

    def barrier(self) -> None:
        """Returns when every rank has called it."""


class Group(ABC):
    """This process as one rank of a reducer group, whose methods are collective.

    They raise ReduceTimeout, GroupMismatch, RingBroken, PeerLeft, GroupFinished or GroupClosed;
    after these the group is over. GroupReformed says that a rank was replaced: call `reform`,
    make the buckets anew, agree with the others on where to go on, and go on.
    """

    rank: int
    size: int
    members: tuple[str, ...]  # by rank, as errors call them: "gmi 5, GPU 1"
    generation: int  # one higher each time that processes of the group were replaced
    joined: int  # the generation this process came with; 0 unless it replaces another

    @property
    def refused(self) -> int:
        """Returns how many connections and messages of strangers this rank has refused so far."""
        return 0

    @property
    def note(self) -> str:
        """Returns what people should know of how it reduces, as far as this rank knows; or ""."""
        return ""

    @abstractmethod
    def bucket(
        self, name: str, numel: int, dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Reducer:  # fmt: skip
        """Makes a bucket of `numel` float32 (default) or float64 zeros, on the CPU or `device`.

        It exists as long as the group does, and until it is re-formed; ask for it once and keep it.
        Calls on a bucket of a GPU run on that device's current stream.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every rank has called it."""

    @abstractmethod
    def exchange(self, value: int) -> list[int]:
        """Exchanges one unsigned 64-bit number of each rank, by rank."""

    @abstractmethod
    def reform(self) -> bool:
        """Returns when every rank has called it after GroupReformed; at once if there was none.

        Tells whether there was one. Buckets of before are dead, and calls on them raise
        GroupReformed: nothing may be written to their tensors any more.
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
