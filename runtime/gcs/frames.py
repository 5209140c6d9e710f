"""Defines the frames between the control store and its replicas, and among these.

`marshal` reads and writes a body: rows are plain tuples of numbers, bytes and text, and both ends
are of one Python. Replicas pass a body on as it came.
"""

from __future__ import annotations

import marshal
from enum import IntEnum
from typing import Any

from gmi_drl.runtime.wire import framing


class ReplicaFrame(IntEnum):
    """Kinds of frames; the id and the body are as said here."""

    WRITE = 1  # id: version of the first of the body's (table, row), the others follow
    ACK = 2  # to the client: everything up to version id is here
    ACKS = 3  # to a replica: id is 1 if it is to send these
    BEFORE = 4  # to a replica, with a descriptor: where its writes come from now
    AFTER = 5  # with a descriptor: where to pass them on; id is 1 if all rows are to go first
    STATE = 6  # id: version; (whether it is the last, some of the rows: (version, table, row))
    FLUSHED = 7  # to a replica: rows up to version id are in the file
    GET = 8  # to a replica: id is the request's number, the body (table, id)
    GOT = 9  # to the client: the same number, the row or None
    PING = 10  # to a replica: are you there?
    PONG = 11  # to the client: yes; also when it has started


def frame(kind: ReplicaFrame, id: int = 0, body: Any = None, num_fds: int = 0) -> bytes:
    """Returns the bytes of a frame; `num_fds` descriptors are sent with the first of them."""
    return framing.frame(kind, id, marshal.dumps(body), num_fds)


def body_of(message: framing.Message) -> Any:
    """Returns the body that `frame` was given."""
    return marshal.loads(message.body)
