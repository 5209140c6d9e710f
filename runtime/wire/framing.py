"""Frames messages between processes on a Unix stream socket, with descriptors beside them.

Descriptors of `Memfd`s travel with the first byte of their frame (SCM_RIGHTS). Both ends are
processes of one user on one host, joined by a socketpair: no stranger reaches them, which is what
makes unpickling safe.
"""

from __future__ import annotations

import array
import collections
import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gmi_drl.runtime.errors import SerializationError

from .packing import MAX_FDS, Part

_HEADER: Final = struct.Struct("<HHIQQ")  # kind, descriptors, 0, id, bytes of the body
# As plain numbers: combining enum members takes longer than the system call they are for.
_CMSG_BYTES: Final = socket.CMSG_SPACE(4 * MAX_FDS)
_CLOEXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_NOSIGNAL: Final = int(socket.MSG_NOSIGNAL)
_TRUNCATED: Final = int(socket.MSG_CTRUNC)
_MAX_PARTS: Final = 512  # below IOV_MAX
_READ_BYTES: Final = 1 << 18
_SMALL_BYTES: Final = _READ_BYTES // 2 - _HEADER.size  # fits into the buffer behind any start


@dataclass(slots=True, eq=False)
class Message:
    """One received frame. It owns the descriptors that came with it until they are closed."""

    kind: int
    id: int
    body: bytes
    fds: list[int] | None

    def take_fds(self) -> list[int]:
        """Returns the descriptors, which the caller owns from here on."""
        fds, self.fds = self.fds, None
        return fds or []

    def close(self) -> None:
        """Closes the descriptors."""
        for fd in self.take_fds():
            os.close(fd)

    def __del__(self) -> None:
        if self.fds:
            self.close()


def frame(kind: int, id: int, body: bytes = b"", num_fds: int = 0) -> bytes:
    """Returns a whole frame; `num_fds` descriptors are to be sent with its first byte."""
    return b"%b%b" % (_HEADER.pack(kind, num_fds, 0, id, len(body)), body)


def send_some(sock: socket.socket, parts: Sequence[Part], fds: Sequence[int] = ()) -> int:
    """Sends as many bytes as the socket takes at once; `fds` go with the first of them."""
    ancillary = []
    if fds:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    return sock.sendmsg(parts[:_MAX_PARTS], ancillary, _NOSIGNAL)


def send(sock: socket.socket, data: Part, fds: Sequence[int] = ()) -> None:
    """Sends everything, blocking. BrokenPipeError or ConnectionResetError if nobody reads."""
    if not fds:
        sock.sendall(data, _NOSIGNAL)
        return
    sent = send_some(sock, [data], fds)
    if sent < len(data):
        sock.sendall(memoryview(data)[sent:], _NOSIGNAL)


class Reader:
    """Cuts what arrives on one socket into messages; works on blocking and other sockets."""

    def __init__(self) -> None:
        self.more = False  # whether the last read filled the buffer, and there may be more
        self._buffer = bytearray(_READ_BYTES)
        self._start = 0
        self._end = 0
        self._fds: collections.deque[int] = collections.deque()
        self._large: tuple[tuple[int, ...], bytearray] | None = None  # header, its body
        self._filled = 0

    def read(self, sock: socket.socket, flags: int = 0) -> list[Message] | None:
        """Returns the messages that one recvmsg completes; None at the end of the stream."""
        if self._large is not None:
            target = memoryview(self._large[1])[self._filled :]
        else:
            target = memoryview(self._buffer)[self._end :]
        size, ancillary, flags, _ = sock.recvmsg_into([target], _CMSG_BYTES, _CLOEXEC | flags)
        self.more = size == len(target)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds.extend(fds)
        if flags & _TRUNCATED:
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
        return [self._message(header, bytes(body))]

    def close(self) -> None:
        """Closes descriptors whose message never arrived."""
        with contextlib.suppress(IndexError):
            while True:
                os.close(self._fds.popleft())

    def _cut(self) -> list[Message]:
        messages = []
        view = memoryview(self._buffer)
        while self._end - self._start >= _HEADER.size:
            header = _HEADER.unpack_from(self._buffer, self._start)
            total = header[4]
            begin = self._start + _HEADER.size
            arrived_bytes = self._end - begin
            if arrived_bytes >= total:
                messages.append(self._message(header, bytes(view[begin : begin + total])))
                self._start = begin + total
                continue
            if total > _SMALL_BYTES:
                body = bytearray(total)
                body[:arrived_bytes] = view[begin : self._end]
                self._large, self._filled = (header, body), arrived_bytes
                self._start = self._end
            break
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start >= _READ_BYTES // 2:
            unread = bytes(view[self._start : self._end])
            self._buffer[: len(unread)] = unread
            self._start, self._end = 0, len(unread)
        return messages

    def _message(self, header: tuple[int, ...], body: bytes) -> Message:
        kind, num_fds, _, id, _ = header
        fds = [self._fds.popleft() for _ in range(num_fds)] if num_fds else None
        return Message(kind, id, body, fds)
