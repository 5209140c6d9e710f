"""Carries experience for bench/comm/experience.py, by our links and by those of peers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from gmi_drl.comm.errors import LinkEnded
from gmi_drl.comm.transports import StreamSpec, create_doorbell, create_link, wait_any

Send = Callable[[int, list[Any], int], None]  # stream, tensors, sequence
Receive = Callable[[], tuple[int, int, Callable[[list[Any]], None]]]  # which, sequence, copy out
UNDER_WAY = 4  # horizons
LIMIT = timedelta(seconds=60)


class Carrier(ABC):
    """Carries messages of one producer to the consumer; it is passed to the producer's process."""

    over: Any  # an event: the consumer has all messages, or has failed

    @classmethod
    @abstractmethod
    def make(cls, context: Any, folder: Path, producers: int) -> list[Any]:
        """Returns a carrier for each producer."""

    @abstractmethod
    def sender(self, cut: list[tuple[int, int]]) -> Send:
        """Returns the producer's send; `cut` has (stream, bytes) of each message of a horizon."""

    @staticmethod
    @abstractmethod
    def receiver(carriers: list[Any]) -> Receive:
        """Returns the consumer's receive."""

    def finish(self) -> None:
        """Waits in the producer, when all is sent, until the consumer has it."""
        self.over.wait(60)
        self.close()

    def done(self) -> None:
        """Ends the consumer's side, when all is received or it has failed."""
        self.over.set()
        self.close()

    def close(self) -> None:  # noqa: B027 - most need not
        """Closes what this process has opened."""


class Link(Carrier):
    """Carries messages by our transports."""

    kind: ClassVar[Any]

    def __init__(self, spec: Any, over: Any) -> None:
        self.spec, self.over = spec, over

    @classmethod
    def make(cls, context: Any, folder: Path, producers: int) -> list[Any]:
        folder.chmod(0o700)
        names = [f"producer {index}" for index in range(producers)]
        doorbell = create_doorbell()
        return [
            cls(
                create_link(name, "consumer", directory=folder, kind=cls.kind, doorbell=doorbell),
                context.Event(),
            )
            for name in names
        ]

    def __reduce__(self) -> Any:
        from multiprocessing import reduction

        spec = self.spec
        if self.kind != "ring":
            return type(self), (spec, self.over)
        fds = [reduction.DupFd(memfd.fd) for memfd in (spec.memfd, spec.doorbell.memfd)]
        return _ring, ((spec.kind, spec.source, spec.target, spec.link), fds, self.over)

    def sender(self, cut: list[tuple[int, int]]) -> Send:
        streams = []
        for stream in sorted({stream for stream, _ in cut}):
            sizes = [nbytes for index, nbytes in cut if index == stream]
            streams.append(StreamSpec(max(sizes), UNDER_WAY * len(sizes)))
        self.end = sender = self.spec.sender(b"", streams, LIMIT)
        views: dict[tuple[Any, ...], list[Any]] = {}  # one for each slot and shape of message

        def send(stream: int, parts: list[Any], sequence: int) -> None:
            slot = sender.reserve(stream)
            lengths = tuple(part.numel() for part in parts)
            key = (stream, slot.place, lengths)
            if key not in views:
                views[key] = _split(slot.memory, parts)
            for view, part in zip(views[key], parts, strict=True):
                view.copy_(part)
            nbytes = 4 * sum(lengths)
            sender.send(slot, nbytes, sequence=sequence, step=0, policy_version=0)

        return send

    @staticmethod
    def receiver(carriers: list[Any]) -> Receive:
        ends = [carrier.spec.receiver(LIMIT) for carrier in carriers]
        for carrier, end in zip(carriers, ends, strict=True):
            carrier.end = end
        open_ends = list(enumerate(ends))
        views: dict[tuple[Any, ...], list[Any]] = {}
        reused = carriers[0].kind == "ring"  # a slot's memory is always the same

        def receive() -> tuple[int, int, Callable[[list[Any]], None]]:
            while True:
                for index, end in list(open_ends):
                    try:
                        packet = end.poll()
                    except LinkEnded:
                        open_ends.remove((index, end))
                        continue
                    if packet is not None:
                        return index, packet.header.sequence, copier(index, end, packet)
                assert wait_any([end for _, end in open_ends], LIMIT), "nothing comes"

        def copier(index: int, end: Any, packet: Any) -> Callable[[list[Any]], None]:
            def copy_out(targets: list[Any]) -> None:
                header = packet.header
                key = (index, header.stream, packet.place, *(part.shape for part in targets))
                parts = views.get(key) or _split(packet.memory, targets)
                if reused:
                    views[key] = parts
                for target, part in zip(targets, parts, strict=True):
                    target.copy_(part)
                end.release(packet)

            return copy_out

        return receive

    def close(self) -> None:
        if hasattr(self, "end"):
            self.end.close()


def _ring(fields: Any, fds: list[Any], over: Any) -> Link:
    from gmi_drl.comm.transports import DoorbellSpec
    from gmi_drl.comm.transports.ring import RingSpec
    from gmi_drl.runtime import Memfd

    ring, doorbell = (Memfd(fd.detach(), "bench") for fd in fds)
    return Ring(RingSpec(*fields, ring, DoorbellSpec(doorbell)), over)


class Ring(Link):
    kind = "ring"


class Tcp(Link):
    kind = "tcp"


class Queue(Carrier):
    """Carries messages by multiprocessing.Queue of arrays, which pickles them."""

    module: ClassVar[str] = "multiprocessing"

    def __init__(self, queue: Any, over: Any) -> None:
        self.queue, self.over = queue, over

    @classmethod
    def make(cls, context: Any, folder: Path, producers: int) -> list[Any]:
        if cls.module != "multiprocessing":
            import torch.multiprocessing

            context = torch.multiprocessing.get_context("forkserver")
        queue = context.Queue(64)
        return [cls((queue, index), context.Event()) for index in range(producers)]

    def sender(self, cut: list[tuple[int, int]]) -> Send:
        queue, producer = self.queue
        arrays = self.module == "multiprocessing"

        def send(stream: int, parts: list[Any], sequence: int) -> None:
            values = [part.numpy() if arrays else part.clone() for part in parts]
            queue.put((producer, sequence, values))

        return send

    @staticmethod
    def receiver(carriers: list[Any]) -> Receive:
        import torch

        queue = carriers[0].queue[0]

        def receive() -> tuple[int, int, Callable[[list[Any]], None]]:
            producer, sequence, parts = queue.get(timeout=60)

            def copy_out(targets: list[Any]) -> None:
                for target, part in zip(targets, parts, strict=True):
                    target.copy_(part if torch.is_tensor(part) else torch.from_numpy(part))

            return producer, sequence, copy_out

        return receive


class TorchQueue(Queue):
    """Carries messages by torch.multiprocessing.Queue: the consumer maps each tensor's memory."""

    module = "torch.multiprocessing"


class ZmqCopy(Carrier):
    """Carries messages by plain ZeroMQ ipc, with copies on both sides."""

    def __init__(self, address: str, which: int, over: Any) -> None:
        self.address, self.which, self.over = address, which, over

    @classmethod
    def make(cls, context: Any, folder: Path, producers: int) -> list[Any]:
        return [cls(f"ipc://{folder}/z", which, context.Event()) for which in range(producers)]

    def sender(self, cut: list[tuple[int, int]]) -> Send:
        import zmq

        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUSH)
        self.socket.set_hwm(UNDER_WAY * len(cut))
        self.socket.connect(self.address)

        def send(stream: int, parts: list[Any], sequence: int) -> None:
            head = b"%d %d" % (self.which, sequence)
            self.socket.send_multipart([head, *(part.numpy() for part in parts)], copy=True)

        return send

    @staticmethod
    def receiver(carriers: list[Any]) -> Receive:
        import torch
        import zmq

        carrier = carriers[0]
        carrier.context = zmq.Context()
        carrier.socket = carrier.context.socket(zmq.PULL)
        carrier.socket.set_hwm(UNDER_WAY * 16)
        carrier.socket.bind(carrier.address)

        def receive() -> tuple[int, int, Callable[[list[Any]], None]]:
            head, *parts = carrier.socket.recv_multipart(copy=True)
            producer, sequence = map(int, head.split())

            def copy_out(targets: list[Any]) -> None:
                for target, part in zip(targets, parts, strict=True):
                    flat = torch.frombuffer(bytearray(part), dtype=torch.float32)
                    target.copy_(flat.view(target.shape))

            return producer, sequence, copy_out

        return receive

    def close(self) -> None:
        if hasattr(self, "context"):
            self.context.destroy(0)


CARRIERS: dict[str, type[Carrier]] = {
    "ring": Ring, "tcp": Tcp, "mp_queue": Queue, "torch_queue": TorchQueue,
    "zmq_copy": ZmqCopy,
}  # fmt: skip


def _split(memory: Any, like: list[Any]) -> list[Any]:
    """Returns views of a message's bytes, shaped as `like`."""
    import torch

    flat, start, views = memory.view(torch.float32), 0, []
    for tensor in like:
        views.append(flat[start : start + tensor.numel()].view(tensor.shape))
        start += tensor.numel()
    return views
