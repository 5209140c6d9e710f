"""Sums in the memory of one GPU that several GMIs share by CUDA IPC: no trip through the host.

Needs cupy (extra `[cuda]`), and a GPU that is not cut by MIG. One kernel a rank adds its own part
of all buffers into the owner's result, which is read in place by all.

Every rank allocates a flat buffer and a result of its own (cudaMalloc, not a pool: a handle is of a
whole allocation) and gives the others handles of them once. A reduction is: record `written`, meet,
wait on the GPU for everybody's `written`, add, record `added`, meet, wait for everybody's `added`.
The meetings are needed beside the events: to wait for an event of another process is to wait for
the last record that it has issued, so it must have issued it. Nobody adds into a result that is
still read: all `written` are recorded behind whatever their streams had to do with it.

Ranks that are threads of one process use each other's memory and events as they are: a process
cannot open a handle of its own.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from gmi_drl.comm.group import tags as _tags
from gmi_drl.placement.faults import install
from gmi_drl.runtime.store.alignment import round_up

from .staged import DeviceReducer
from .sums import rank_slice

if TYPE_CHECKING:
    from .shared_group import SharedGroup

_LINE: Final = 256  # where the result begins behind the buffer
_THREADS: Final = 256
_BLOCKS_PER_SM: Final = 4
_HANDLE_BYTES: Final = 64
_WRITTEN, _ADDED, _REDUCED = range(3)

# By address: memory and events of ranks that are threads of this process.
_here: dict[int, tuple[Any, list[Any]]] = {}

# Adds k vectors in their order, 16 bytes a thread and turn; what is left over one by one.
_SOURCE: Final = """
struct alignas(16) Words { T x[16 / sizeof(T)]; };
extern "C" __global__ void add(const T* const* from, int k, T* out, T share, long long n) {
    const int width = 16 / sizeof(T);
    const long long stride = (long long)gridDim.x * blockDim.x, words = n / width;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long i = first; i < words; i += stride) {
        Words sum = ((const Words*)from[0])[i];
        for (int j = 1; j < k; ++j) {
            const Words other = ((const Words*)from[j])[i];
            for (int w = 0; w < width; ++w) sum.x[w] += other.x[w];
        }
        for (int w = 0; w < width; ++w) sum.x[w] *= share;
        ((Words*)out)[i] = sum;
    }
    for (long long i = words * width + first; i < n; i += stride) {
        T sum = from[0][i];
        for (int j = 1; j < k; ++j) sum += from[j][i];
        out[i] = sum * share;
    }
}
"""


def why_not(device: torch.device) -> str | None:
    """Says why this process cannot share memory of its GPU: value, rule, remedy; None if it can."""
    if device.type != "cuda":
        return f"the bucket is on {device}; CUDA IPC shares memory of a GPU. Use mpr."
    if importlib.util.find_spec("cupy") is None:
        return f"CUDA IPC needs cupy: not installed. Run {install('cuda')}."
    if os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        return "the GPU is cut by MIG, and its instances share no memory by CUDA IPC. Use mpr."
    return None


class GpuSum:
    """Buffers of `ranks`, which are on one GPU, and the sum of them in the memory of `owner`.

    Made by all ranks of the group at the same time; each passes the ranks of its own GPU. The
    kernels run on the device's current stream.
    """

    def __init__(
        self, group: SharedGroup, ranks: Sequence[int], owner: int, numel: int, dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._cupy: Any = importlib.import_module("cupy")
        self._runtime = self._cupy.cuda.runtime
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device, self._gpu = device, self._cupy.cuda.Device(index)
        self._dtype, self._numel = dtype, numel
        self._ranks, self._rank, self._owner = tuple(ranks), group.rank, owner
        self._nbytes = round_up(max(numel, 1) * dtype.itemsize, _LINE)
        # Nothing here waits for the whole device or uses the default stream: where GMIs are
        # threads, another one may be capturing a graph.
        with self._gpu:
            memory = self._cupy.cuda.Memory(2 * self._nbytes)
            self._runtime.memsetAsync(memory.ptr, 0, memory.size, self._stream)
            self._runtime.streamSynchronize(self._stream)
            self._events = [
                self._cupy.cuda.Event(disable_timing=True, interprocess=True) for _ in range(3)
            ]
            handles = [
                self._runtime.ipcGetMemHandle(memory.ptr),
                *(self._runtime.ipcGetEventHandle(event.ptr) for event in self._events),
            ]
        self._opened: list[tuple[Callable[[int], None], int]] = []
        self._used: list[Any] = []  # of other threads
        self._own: int = memory.ptr
        _here[memory.ptr] = (memory, self._events)
        group.at_end(self._close)
        text = f"{os.getpid()} {memory.ptr} {b''.join(handles).hex()}"
        texts = group.exchange_text(text)
        self._memory = {self._rank: memory.ptr}
        self._event_of = {self._rank: [event.ptr for event in self._events]}
        for rank in self._ranks:
            if rank != self._rank:
                self._open(rank, *texts[rank].split())
        group.barrier()  # nobody gives back what another has still to open
        self.buffer = self._tensor(memory, memory.ptr)
        self.result = self._tensor(memory, self._memory[owner] + self._nbytes)
        start, stop = rank_slice(
            numel, dtype.itemsize, self._ranks.index(self._rank), len(self._ranks)
        )
        self._count, offset = stop - start, start * dtype.itemsize
        self._out = self._memory[owner] + self._nbytes + offset
        with self._gpu, self._cupy_stream():
            self._from = self._cupy.asarray(
                [self._memory[rank] + offset for rank in self._ranks], dtype="uint64"
            )
            self._kernel = _kernel("float" if dtype == torch.float32 else "double")
            self._runtime.streamSynchronize(self._stream)

    def written(self) -> None:
        """Records that this stream's work fills the buffer; then meet, then `add`."""
        self._record(_WRITTEN)

    def add(self, share: float | None) -> None:
        """Adds this rank's part of the sum, times `share` if there is one; then meet."""
        self._wait(_WRITTEN, self._ranks)
        if self._count:
            width = 16 // self._dtype.itemsize
            blocks = min(-(-self._count // (_THREADS * width)), self._most_blocks)
            scalar = self._cupy.float32 if self._dtype == torch.float32 else self._cupy.float64
            arguments = (
                self._from, self._cupy.int32(len(self._ranks)), self._cupy.uint64(self._out),
                scalar(1.0 if share is None else share), self._cupy.int64(self._count),
            )  # fmt: skip
            with self._gpu, self._cupy_stream():
                self._kernel((blocks,), (_THREADS,), arguments)
        self._record(_ADDED)

    def until_added(self) -> None:
        """Makes this stream wait for the whole sum in `result`."""
        self._wait(_ADDED, self._ranks)

    def reduced(self) -> None:
        """Records that this stream was given more to do with `result`; then meet."""
        self._record(_REDUCED)

    def until_reduced(self) -> None:
        """Makes this stream wait for what the owner has made of `result`."""
        self._wait(_REDUCED, (self._owner,))

    def _tensor(self, memory: Any, address: int) -> Tensor:
        """Returns a vector [numel] at `address`, which keeps `memory` alive."""
        if not self._numel:
            return torch.zeros(0, dtype=self._dtype, device=self._device)
        # Not self too: it holds the tensor, and no collector sees torch's part of such a cycle.
        outer = self._cupy.cuda.UnownedMemory(address, self._nbytes, memory)
        kind = "f4" if self._dtype == torch.float32 else "f8"
        with self._gpu:
            array = self._cupy.ndarray(
                (self._numel,), kind, self._cupy.cuda.MemoryPointer(outer, 0)
            )
            return torch.as_tensor(array, device=self._device)

    def _open(self, rank: int, process: str, place: str, text: str) -> None:
        if int(process) == os.getpid():
            shared, owned_events = _here[int(place)]
            self._used.append((shared, owned_events))
            self._memory[rank] = shared.ptr
            self._event_of[rank] = [event.ptr for event in owned_events]
            return
        runtime, handles = self._runtime, bytes.fromhex(text)
        memory, *events = (
            handles[i : i + _HANDLE_BYTES] for i in range(0, len(handles), _HANDLE_BYTES)
        )
        with self._gpu:
            address = runtime.ipcOpenMemHandle(memory)
            self._opened.append((runtime.ipcCloseMemHandle, address))
            self._memory[rank], self._event_of[rank] = address, []
            for handle in events:
                event = runtime.ipcOpenEventHandle(handle)
                self._opened.append((runtime.eventDestroy, event))
                self._event_of[rank].append(event)

    def _close(self) -> None:
        """Gives back what is of other ranks: nobody may use tensors of it any more."""
        with self._gpu:
            if self._opened:  # then no other GMI is in this process
                self._runtime.deviceSynchronize()
            while self._opened:
                close, handle = self._opened.pop()
                close(handle)
        self._used.clear()
        _here.pop(self._own, None)

    @property
    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream

    def _cupy_stream(self) -> Any:
        """Returns a context in which cupy launches on torch's current stream."""
        return self._cupy.cuda.Stream.from_external(_CudaStream(self._stream))

    @cached_property
    def _most_blocks(self) -> int:
        return _BLOCKS_PER_SM * torch.cuda.get_device_properties(self._device).multi_processor_count

    def _record(self, which: int) -> None:
        with self._gpu:
            self._runtime.eventRecord(self._events[which].ptr, self._stream)

    def _wait(self, which: int, ranks: Sequence[int]) -> None:
        with self._gpu:
            for rank in ranks:
                if rank != self._rank:
                    self._runtime.streamWaitEvent(self._stream, self._event_of[rank][which])


class _CudaStream:
    """A stream by CUDA's stream protocol (cuda.core, "Interoperability")."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address  # the protocol's version, and the cudaStream_t


class IpcReducer(DeviceReducer):
    """One bucket of ranks that are all on one GPU."""

    def _place(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if fault := why_not(device):
            raise ValueError(f"strategy ipc: {fault}")
        host = self.host
        ranks = range(self.size)
        self._owns_result = self.rank == 0
        self._sum = GpuSum(host.group, ranks, 0, self.numel, dtype=host.buffer.dtype, device=device)
        return self._sum.buffer, self._sum.result

    def _combine(self, tag: int, share: float | None) -> None:
        meet = self.host.group.meet
        self._sum.written()
        meet(tag)
        self._sum.add(share)
        meet(tag | _tags.PHASE_2)
        self._sum.until_added()


@functools.cache
def _kernel(number: str) -> Any:
    cupy = importlib.import_module("cupy")
    # No macro: cupy has the compiler read headers first, in which T is the name of a parameter.
    source = f"typedef {number} T;\n{_SOURCE}"
    return cupy.RawKernel(source, "add", options=("-std=c++14",))
