"""A link inside one GPU has its payloads in device memory that both processes map.

Two threads of one process use the memory as it is: it cannot open a handle of its own.

The sender allocates all slots at once and exports them and an event for each by CUDA IPC, once. A
ring in shared memory carries what is left: the headers, the order, back-pressure and the exports
themselves, in a stream of their own. `send` records the slot's event on the current stream and then
sends; `poll` makes the receiver's current stream wait for it: waiting for an event of another
process waits for what was recorded last, so the record must come first, which the ring sees to. A
slot goes back when all that the receiver had enqueued before `release` has run.

Device memory goes with the process that allocated it. Packets of a sender that was killed, and that
were not received, are therefore lost: `poll` passes over them, and their sequence numbers are
missing, as with sockets. A replaced receiver opens the sender's newest export, which is never
released, and is given again what was not released, as with a ring.
"""

from __future__ import annotations

import collections
import os
import pickle
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.comm.errors import LinkError
from gmi_drl.runtime.store.alignment import round_up

from .control_message import pack_hello, unpack_hello
from .doorbell import DoorbellSpec
from .packet import Packet, PacketHeader, PacketSlot
from .protocol import LinkSpec, Receiver, Sender, StreamSpec
from .ring import RingSpec, create_ring

if TYPE_CHECKING:
    from torch import Tensor

_LENGTH: Final = struct.Struct("<Q")  # what the ring carries of a packet: its bytes
_ALIGN: Final = 512
_DEVICE = "cuda"
# Senders that are threads of this process, by the address of their memory.
_local_senders: weakref.WeakValueDictionary[int, CudaSender] = weakref.WeakValueDictionary()
_EXPORTS: Final = 4  # slots for exports: the newest is kept, the one before it until then


@dataclass(frozen=True)
class CudaSpec(LinkSpec):
    """A link in the memory of the GPU that both ends use as their current device."""

    ring: RingSpec

    def _ends(self) -> tuple[type[Sender], type[Receiver]]:
        check_device(self.name)
        return CudaSender, CudaReceiver


def create_cuda(source: str, target: str, doorbell: DoorbellSpec | None = None) -> CudaSpec:
    """Makes a link in device memory; the ends check that they can map each other's."""
    return CudaSpec("cuda", source, target, create_ring(source, target, doorbell))


def check_device(name: str) -> None:
    """Raises LinkError unless this process can share memory of its GPU."""
    import torch

    if not torch.cuda.is_available():
        raise LinkError(f"{name}: no CUDA device in this process. Use a ring: gpu=False.")
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(variable, "").replace(" ", "").lower():
            raise LinkError(
                f"{name}: {variable} turns expandable_segments on, whose memory cannot be shared "
                "between processes. Turn it off for the GMIs, or use a ring: gpu=False."
            )


class CudaSender(Sender):
    """See protocol.Sender. `memory` of a slot is on the current device."""

    def __init__(
        self, spec: CudaSpec, schema: bytes, streams: Sequence[StreamSpec], timeout: timedelta
    ) -> None:
        import torch

        self._spec, self._timeout = spec, timeout
        self._sizes = [stream.nbytes for stream in streams]
        count = sum(stream.slots for stream in streams)
        inner = [StreamSpec(_LENGTH.size, stream.slots) for stream in streams]
        self._ring = spec.ring.sender(
            pack_hello(schema, streams, [0] * len(streams)),
            [StreamSpec(2048 + 200 * count, _EXPORTS), *inner],
            timeout,
        )
        self._streams = self._ring._streams[1:]
        self.incarnation = self._ring.incarnation
        try:
            starts = offsets(streams)
            self._memory = torch.empty(starts[-1], dtype=torch.uint8, device=_DEVICE)
            storage: Any = self._memory.untyped_storage()
            self._events: list[Any] = [_cuda().Event(interprocess=True) for _ in range(count)]
            _local_senders[self._memory.data_ptr()] = self
            exported = storage._share_cuda_()
            self._counter: Sequence[Any] = exported[4:6]  # its file, and its place there
            export = {
                "process": os.getpid(),
                "address": self._memory.data_ptr(),
                "memory": exported,
                "events": [event.ipc_handle() for event in self._events],
            }
        except RuntimeError as error:
            self._ring.close()
            raise LinkError(
                f"{spec.name}: {sum(s.nbytes * s.slots for s in streams):,} bytes of device memory "
                f"cannot be shared ({error}). Use fewer slots, or a ring: gpu=False."
            ) from error
        self._slots: list[list[PacketSlot]] = []
        self._first: list[int] = []  # of each stream, its first slot among all
        for index, stream in enumerate(streams):
            self._first.append(sum(len(slots) for slots in self._slots))
            begin = self._first[-1]
            rows = views(self._memory, starts[begin : begin + stream.slots], stream.nbytes)
            self._slots.append([PacketSlot(row, index, place) for place, row in enumerate(rows)])
        self._inner: dict[tuple[int, int], PacketSlot] = {}
        self._send_export(pickle.dumps(export))

    def _send_export(self, raw: bytes) -> None:
        slot = self._ring.reserve(0)
        slot.memory.numpy()[: len(raw)] = memoryview(raw)
        self._ring.send(slot, len(raw), sequence=0, step=0, policy_version=0)

    def try_reserve(self, stream: int) -> PacketSlot | None:
        inner = self._ring.try_reserve(stream + 1)
        if inner is None:
            return None
        slot = self._slots[stream][inner.place]
        self._inner[stream, inner.place] = inner
        slot.reserved = True
        return slot

    def _wait_for_room(self, stream: int, timeout_s: float) -> None:
        self._ring._wait_for_room(stream + 1, timeout_s)

    def _peer_text(self) -> str:
        return self._ring._peer_text()

    def send(
        self, slot: PacketSlot, nbytes: int, *, sequence: int, step: int, policy_version: int
    ) -> None:
        """Sends as every sender does, behind the work of the current CUDA stream."""
        slot.take(nbytes, self._sizes[slot.stream])
        inner = self._inner.pop((slot.stream, slot.place))
        self._events[self._first[slot.stream] + slot.place].record()
        inner.memory.numpy()[:] = memoryview(_LENGTH.pack(nbytes))
        self._ring.send(
            inner, _LENGTH.size, sequence=sequence, step=step, policy_version=policy_version
        )

    def under_way(self, stream: int) -> int:
        return self._ring.under_way(stream + 1)

    def close(self) -> None:
        """Closes as every sender does; its memory stays until this object goes."""
        self._ring.close()

    def used_here(self) -> tuple[Tensor, list[Any]]:
        """Lends memory and events to a receiver that is a thread of this process.

        Torch keeps memory that it has exported until somebody who opened it has released it. Here
        nobody opens it, and this process would keep it for good when this object goes.
        """
        import torch

        counter, self._counter = self._counter, ()
        if counter:  # once: below 0 it would never be free either
            storage: Any = torch.UntypedStorage
            storage._release_ipc_counter_cuda(*counter)
        return self._memory, self._events


class _Export:
    """A sender's memory in this process."""

    def __init__(self, raw: bytes, streams: Sequence[StreamSpec]) -> None:
        export = pickle.loads(raw)
        if _is_here(export["process"]):
            sender = _local_senders.get(export["address"])
            if sender is None:
                raise RuntimeError("the sender has gone, and its memory with it")
            memory, events = sender.used_here()
        else:
            memory, events = _open_export(export)
        starts = offsets(streams)
        self.rows: list[list[Tensor]] = []
        self.events: list[list[Any]] = []
        begin = 0
        for stream in streams:
            end = begin + stream.slots
            self.rows.append(views(memory, starts[begin:end], stream.nbytes))
            self.events.append(events[begin:end])
            begin = end


def _is_here(process: int) -> bool:
    return process == os.getpid()


def _open_export(export: dict[str, Any]) -> tuple[Tensor, list[Any]]:
    """Opens memory and events of another process, which keeps them until released here.

    A receiver that is killed releases nothing, and its successor does. If one ends otherwise and is
    replaced, torch counts two releases, and keeps the memory as long as its process lives.
    """
    import torch

    device = torch.cuda.current_device()
    storage = torch.UntypedStorage._new_shared_cuda(device, *export["memory"][1:])  # not its index
    memory = torch.empty(0, dtype=torch.uint8, device=_DEVICE).set_(storage)
    events = [
        _cuda().Event.from_ipc_handle(torch.device(_DEVICE, device), handle)
        for handle in export["events"]
    ]
    return memory, events


class CudaReceiver(Receiver):
    """See protocol.Receiver. `memory` of a packet is the sender's device memory."""

    def __init__(self, spec: CudaSpec, timeout: timedelta) -> None:
        from .ring_ends import RingReceiver

        self._spec, self.source = spec, spec.source
        self._ring = RingReceiver(spec.ring, timeout)
        self.doorbell = self._ring.doorbell
        self._streams: list[StreamSpec] = []
        self._exported: Packet | None = None
        self._export: _Export | None = None
        self._open_error = ""  # why there is none
        self._early: collections.deque[Packet] = collections.deque()
        self._inner: dict[tuple[int, int], Packet] = {}  # by stream and slot
        self._reading: collections.deque[tuple[Any, Packet]] = collections.deque()

    @property
    def schema(self) -> bytes:
        if self._schema is None:
            self._schema, self._streams, _ = unpack_hello(self._ring.schema, self._spec.name)
        return self._schema

    def connected(self) -> bool:
        return self._ring.connected()

    def _peer_text(self) -> str:
        return self._ring._peer_text()

    def ready(self) -> bool:
        self._release_read()
        return bool(self._early) or self._ring.ready()

    def poll(self) -> Packet | None:
        self._release_read()
        while True:
            while not self._early or self._newest < self._early[0].header.incarnation:
                inner = self._ring.poll()
                if inner is None:
                    return None
                if inner.header.stream == 0:
                    self._open(inner)
                else:
                    self._early.append(inner)
            packet = self._take(self._early.popleft())
            if packet is not None:
                return packet

    @property
    def _newest(self) -> int:
        return -1 if self._exported is None else self._exported.header.incarnation

    def _open(self, inner: Packet) -> None:
        """Maps the memory of a sender that has come, and lets go of the one before."""
        _ = self.schema  # reads the streams, too
        previous, self._exported = self._exported, inner
        self._export = None
        if previous is not None:
            self._ring.release(previous)
        try:
            self._export = _Export(bytes(inner.memory.numpy()), self._streams)
        except RuntimeError as error:  # it may have gone with its process, or thread
            self._open_error = str(error)

    def _take(self, inner: Packet) -> Packet | None:
        """Takes the packet; None if it went with the process that held it."""
        import torch

        header = inner.header
        if header.incarnation < self._newest or not self._ring.sender_lives():
            self._ring.release(inner)
            return None
        export = self._export
        if export is None:
            raise LinkError(
                f"{self._spec.name}: the memory of its sender cannot be opened "
                f"({self._open_error}). Use a ring: gpu=False."
            )
        stream, place = header.stream - 1, inner.place
        (nbytes,) = _LENGTH.unpack(bytes(inner.memory.numpy()))
        export.events[stream][place].wait(torch.cuda.current_stream())
        memory = export.rows[stream][place][:nbytes]
        self._inner[stream, place] = inner
        outer = PacketHeader(stream, *header[1:6], nbytes)
        return Packet(outer, memory, place)

    def release(self, packet: Packet) -> None:
        """Releases when the current CUDA stream has done what it has to do so far."""
        inner = self._inner.pop((packet.header.stream, packet.take(self._spec.name)))
        event = _cuda().Event()
        event.record()
        self._reading.append((event, inner))
        self._release_read()

    def _release_read(self) -> None:
        while self._reading and self._reading[0][0].query():
            self._ring.release(self._reading.popleft()[1])

    def close(self) -> None:
        self._export = None
        self._ring.close()


def offsets(streams: Sequence[StreamSpec]) -> list[int]:
    """Returns where each slot begins in the device memory, and where the last one ends."""
    starts = [0]
    for stream in streams:
        for _ in range(stream.slots):
            starts.append(starts[-1] + round_up(stream.nbytes, _ALIGN))
    return starts


def views(memory: Tensor, starts: Sequence[int], nbytes: int) -> list[Tensor]:
    """Returns the slots of one stream, made once."""
    return [memory[start : start + nbytes] for start in starts]


def _cuda() -> Any:
    """Returns torch.cuda, whose events torch has not annotated."""
    import torch

    return torch.cuda
