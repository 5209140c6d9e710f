"""Frames between the control store and its replicas, and among these.

A frame is a header and a body that `marshal` reads and writes: rows are plain tuples of numbers,
bytes and text, and both ends are of one Python. Replicas pass a body on as it came.
"""

from __future__ import annotations

import array
import marshal
import socket
import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple

_HEADER: Final = struct.Struct("<IIQQ")  # kind, bytes of the body, a, b
_READ_BYTES: Final = 1 << 18
_MOST_FDS: Final = 4


class Kind(IntEnum):
    """What a frame is; `a`, `b` and the body as said here."""

    WRITE = 1  # a: version of the first of the body's (table, row), the others follow
    ACK = 2  # to the client: everything up to version a is here
    ACKS = 3  # to a replica: a is 1 if it is to send these
    BEFORE = 4  # to a replica, with a descriptor: where its writes come from now
    AFTER = 5  # with a descriptor: where to pass them on; a is 1 if all rows are to go first
    STATE = 6  # a: version; b: 1 in the last; the body's (version, table, row) are some of its rows
    FLUSHED = 7  # to a replica: rows up to version a are in the file
    GET = 8  # to a replica: a is the request's number, the body (table, id)
    GOT = 9  # to the client: the same number, the row or None
    ASK = 10  # to a replica: are you there?
    HERE = 11  # to the client: yes; also when it has started


class Frame(NamedTuple):
    """One frame; `raw` is all of it, to be passed on."""

    kind: int
    a: int
    b: int
    raw: bytes
    fd: int  # -1: none came with it

    def body(self) -> Any:
        return marshal.loads(memoryview(self.raw)[_HEADER.size :])


def frame(kind: Kind, a: int = 0, b: int = 0, body: Any = None) -> bytes:
    """The bytes of a frame."""
    data = marshal.dumps(body)
    return _HEADER.pack(kind, len(data), a, b) + data


class Reader:
    """Cuts what arrives at one socket into frames."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._fds: list[int] = []

    def read(self) -> list[Frame] | None:
        """What one receive completes; None when the other end is gone."""
        try:
            data, ancillary, _, _ = self._sock.recvmsg(
                _READ_BYTES, socket.CMSG_SPACE(4 * _MOST_FDS), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(content[: len(content) // 4 * 4])
                self._fds.extend(fds)
        if not data:
            return None
        buffer = self._buffer
        buffer += data
        frames = []
        begin = 0
        while len(buffer) - begin >= _HEADER.size:
            kind, size, a, b = _HEADER.unpack_from(buffer, begin)
            end = begin + _HEADER.size + size
            if len(buffer) < end:
                break
            fd = self._fds.pop(0) if kind in (Kind.BEFORE, Kind.AFTER) else -1
            frames.append(Frame(kind, a, b, bytes(buffer[begin:end]), fd))
            begin = end
        del buffer[:begin]
        return frames
