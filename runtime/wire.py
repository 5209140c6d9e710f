"""Messages between processes: pickles in frames over a Unix stream socket, descriptors beside them.

A frame is a header, the lengths of its out-of-band buffers, the pickle, and the buffers, each at a
multiple of 64 bytes. Large arrays are not copied into the pickle (protocol 5), and on the other
side they are views of the bytes as they arrived. A `Memfd` travels as an open descriptor
(SCM_RIGHTS) with the first byte of its frame.

Both ends are processes of one user on one host, joined by a socketpair: nothing here is reachable
by a stranger, which is what makes unpickling safe.
"""

from __future__ import annotations

import array
import collections
import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from .errors import SerializationError
from .packing import MAX_FDS, Packed, Part, unpack

_HEADER: Final = struct.Struct("<HHIQQQ")  # kind, descriptors, buffers, id, pickle bytes, all bytes
_ALIGN: Final = 64
_MAX_PARTS: Final = 512  # below IOV_MAX
_READ_BYTES: Final = 1 << 18
_SMALL_BYTES: Final = _READ_BYTES // 2 - _HEADER.size  # fits behind any start
_PADDING: Final = bytes(_ALIGN)


class Message:
    """One received frame. It owns the descriptors that came with it until they are taken."""

    __slots__ = ("_body", "_fds", "_num_buffers", "_payload_bytes", "id", "kind")

    def __init__(
        self, kind: int, id: int, num_buffers: int, payload_bytes: int, body: Part, fds: list[int]
    ) -> None:
        self.kind = kind
        self.id = id
        self._num_buffers = num_buffers
        self._payload_bytes = payload_bytes
        self._body = body
        self._fds = fds

    @property
    def empty(self) -> bool:
        """True when it carries no value at all (how None is sent)."""
        return not self._body

    def take_fd(self, index: int) -> int:
        """The descriptor at `index`; the caller owns it from here on."""
        fd, self._fds[index] = self._fds[index], -1
        if fd < 0:
            raise ValueError("this descriptor has been taken already")
        return fd

    def load(self, what: str = "the message") -> Any:
        """The value; `what` names it when it cannot be rebuilt here."""
        if not self._num_buffers:
            return unpack(self._body, what, (), self.take_fd)
        view = memoryview(self._body)
        lengths = struct.unpack_from(f"<{self._num_buffers}Q", view)
        start = 8 * self._num_buffers
        payload = view[start : start + self._payload_bytes]
        start += self._payload_bytes
        buffers = []
        for length in lengths:
            start += -start % _ALIGN
            buffers.append(view[start : start + length])
            start += length
        return unpack(payload, what, buffers, self.take_fd)

    def close(self) -> None:
        """Closes the descriptors that nobody took."""
        fds, self._fds = self._fds, []
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        if self._fds:
            self.close()


def frame(kind: int, id: int, packed: Packed | None = None, num_fds: int = 0) -> list[Part]:
    """The bytes of one frame, in parts, without copying the buffers.

    `num_fds`: descriptors sent beside it that are not Memfds of the value.
    """
    if packed is None:
        return [_HEADER.pack(kind, 0, 0, id, 0, 0)]
    num_fds += len(packed.memfds)
    payload_bytes = len(packed.payload)
    num_buffers = len(packed.buffers)
    if not num_buffers:
        header = _HEADER.pack(kind, num_fds, 0, id, payload_bytes, payload_bytes)
        return [header, packed.payload]
    lengths = struct.pack(f"<{num_buffers}Q", *(b.nbytes for b in packed.buffers))
    parts: list[Part] = [lengths, packed.payload]
    total = len(lengths) + payload_bytes
    for buffer in packed.buffers:
        if total % _ALIGN:
            parts.append(_PADDING[: -total % _ALIGN])
            total += -total % _ALIGN
        parts.append(buffer)
        total += buffer.nbytes
    header = _HEADER.pack(kind, num_fds, num_buffers, id, payload_bytes, total)
    return [header, *parts]


def send_some(sock: socket.socket, parts: Sequence[Part], fds: Sequence[int] = ()) -> int:
    """One sendmsg: as many bytes as the socket takes; `fds` go with the first of them."""
    ancillary = []
    if fds:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    return sock.sendmsg(parts[:_MAX_PARTS], ancillary, socket.MSG_NOSIGNAL)


def send(sock: socket.socket, parts: Sequence[Part], fds: Sequence[int] = ()) -> None:
    """Sends everything, blocking. BrokenPipeError or ConnectionResetError: nobody reads it."""
    left: list[Part] = [memoryview(part) for part in parts if len(part)]
    while left:
        sent = send_some(sock, left, fds)
        fds = ()
        skip = 0
        while skip < len(left) and sent >= len(left[skip]):
            sent -= len(left[skip])
            skip += 1
        del left[:skip]
        if sent:
            left[0] = left[0][sent:]


class Reader:
    """Cuts what arrives on one socket into messages; works on blocking and other sockets."""

    def __init__(self) -> None:
        self._buffer = bytearray(_READ_BYTES)
        self._start = 0
        self._end = 0
        self._fds: collections.deque[int] = collections.deque()
        self._large: tuple[tuple[int, ...], bytearray] | None = None  # header, its body
        self._filled = 0

    def read(self, sock: socket.socket) -> list[Message] | None:
        """What one recvmsg completes, perhaps nothing; None at the end of the stream."""
        if self._large is not None:
            target = memoryview(self._large[1])[self._filled :]
        else:
            target = memoryview(self._buffer)[self._end :]
        size, ancillary, flags, _ = sock.recvmsg_into(
            [target], socket.CMSG_SPACE(4 * MAX_FDS), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            raise SerializationError(
                "descriptors were lost on the way: this process may open no more files. "
                "Raise its limit (ulimit -n)."
            )
        if size == 0:
            return None
        if self._large is None:
            self._end += size
            return self._cut()
        self._filled += size
        header, body = self._large
        if self._filled < len(body):
            return []
        self._large = None
        return [self._message(header, body)]

    def close(self) -> None:
        """Closes descriptors whose message never came."""
        with contextlib.suppress(IndexError):
            while True:
                os.close(self._fds.popleft())

    def _cut(self) -> list[Message]:
        messages = []
        view = memoryview(self._buffer)
        while self._end - self._start >= _HEADER.size:
            header = _HEADER.unpack_from(self._buffer, self._start)
            total = header[5]
            begin = self._start + _HEADER.size
            there = self._end - begin
            if there >= total:
                own = bytearray if header[2] else bytes  # arrays are writable, as in large frames
                messages.append(self._message(header, own(view[begin : begin + total])))
                self._start = begin + total
                continue
            if total > _SMALL_BYTES:
                body = bytearray(total)
                body[:there] = view[begin : self._end]
                self._large, self._filled = (header, body), there
                self._start = self._end
            break
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start >= _READ_BYTES // 2:
            left = bytes(view[self._start : self._end])
            self._buffer[: len(left)] = left
            self._start, self._end = 0, len(left)
        return messages

    def _message(self, header: tuple[int, ...], body: Part) -> Message:
        kind, num_fds, num_buffers, id, payload_bytes, _ = header
        fds = [self._fds.popleft() for _ in range(num_fds)]
        return Message(kind, id, num_buffers, payload_bytes, body, fds)
