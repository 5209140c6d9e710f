"""Reduces buckets of a GPU on the host: there and back through pinned memory.

    GPU buffer --copy--> this rank's slot    (memory all ranks share)    result --copy--> GPU result

Slots and results are registered with CUDA, so that copies go straight there, on a stream of their
own, until the group's generation ends. Where the driver refuses it, they are slower, not wrong.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gmi_drl.comm.group.group import ReduceOp
from gmi_drl.comm.shm.pinned import PinnedMemory

from .bucket import SharedBucket
from .sums import Array, slot_bytes


class StagedReducer:
    """A bucket on `device`, over one on the host that does the reduction.

    Works on the device's current stream: it waits for what was issued there before, and what is
    issued there afterwards finds the result. The calls wait for the other ranks all the same.
    """

    def __init__(self, host: SharedBucket, device: torch.device) -> None:
        self.host = host
        self.rank, self.size, self.numel = host.rank, host.size, host.numel
        self.buffer, self.result = self._place(device)
        self._gathered: Tensor | None = None
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pin()

    def _place(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Allocates buffer and result, zeros [numel] on the device."""
        buffer = torch.zeros(self.numel, dtype=self.host.buffer.dtype, device=device)
        return buffer, torch.zeros_like(buffer)

    def _pin(self) -> None:
        rows = self.size + len(self.host.group.mpl)  # slots and results come first
        nbytes = rows * slot_bytes(self.numel, self.buffer.itemsize)
        pinned = PinnedMemory(self.host.memory, self.buffer.device, "gradients are", nbytes)

        def release() -> None:
            self._copies.synchronize()
            pinned.close()

        self.host.group.at_end(release)

    def reduce(self, op: ReduceOp = "mean") -> Tensor:
        self._copy_to_host()
        self._copy_to_device(self.result, self.host.reduce(op))
        return self.result

    def gather(self) -> Tensor:
        self._copy_to_host()
        rows = self.host.gather()
        if self._gathered is None:
            self._gathered = torch.zeros_like(rows, device=self.buffer.device)
        self._copy_to_device(self._gathered, rows)
        return self._gathered

    def broadcast(self, src: int = 0) -> Tensor:
        self._copy_to_host()
        self._copy_to_device(self.result, self.host.broadcast(src))
        return self.result

    def pass_on(self, stage: Callable[[Array], None]) -> None:
        """Lets rank 0 turn the result into the result of all; see SharedBucket."""
        self.host.pass_on(stage)
        self._copy_to_device(self.result, self.host.result)

    def barrier(self) -> None:
        self.host.barrier()

    def _copy_to_host(self) -> None:
        """Copies the buffer to its slot; the memory of the host is ours when it returns."""
        copies = self._copies
        copies.wait_stream(torch.cuda.current_stream(self.buffer.device))
        with torch.cuda.stream(copies):
            self.host.buffer.copy_(self.buffer.detach(), non_blocking=True)
        copies.synchronize()  # also with the copy up of the call before, which reads the results

    def _copy_to_device(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)
        torch.cuda.current_stream(self.buffer.device).wait_stream(self._copies)


class DeviceReducer(StagedReducer):
    """A bucket that is reduced where it is; it gathers and broadcasts through the host."""

    _owns_result = True  # whether `result` is this rank's own memory

    def reduce(self, op: ReduceOp = "mean") -> Tensor:
        self._combine(self.host.tag_of(op), 1 / self.size if op == "mean" else None)
        return self.result

    def broadcast(self, src: int = 0) -> Tensor:
        self._copy_to_host()
        value = self.host.broadcast(src)
        if self._owns_result:
            self._copy_to_device(self.result, value)
            self._copies.synchronize()
        self.host.barrier()  # only then may others read it in place
        return self.result

    def pass_on(self, stage: Callable[[Array], None]) -> None:
        def through_host(whole: Array) -> None:
            self._copies.wait_stream(torch.cuda.current_stream(self.buffer.device))
            with torch.cuda.stream(self._copies):
                torch.from_numpy(whole).copy_(self.result, non_blocking=True)
            self._copies.synchronize()
            stage(whole)

        host = self.host
        host.pass_on(through_host)
        if self._owns_result:
            self._copy_to_device(self.result, torch.from_numpy(host.results[0]))
            self._copies.synchronize()
        host.barrier()

    @abstractmethod
    def _combine(self, tag: int, share: float | None) -> None:
        """Sums over all ranks, times `share` if there is one, into `result`.

        Begins and ends with a meeting, of `tag` and of tag | PHASE_2.
        """
