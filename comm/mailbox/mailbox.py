"""Mailboxes carry messages between the GMIs of a run, over ZeroMQ in a private folder.

Every mailbox owns one socket file, `gmi<id>`, where it receives; to each GMI it writes to it has
two connections, one for messages and one for its receipts. A receiver tells a sender that it has
taken a message (`TAKEN`), so that a sender knows how many are under way to it and waits when they
are as many as the capacity. Nothing is ever dropped while both are open; a mailbox that closes says
so (`CLOSED`) behind its last message.

When a GMI is restarted, everyone who has exchanged messages with it gets one PeerRestarted: what
was under way in either direction is lost, and nothing of it reaches the new one (files.py).

Only processes of this user can reach the folder, which is checked, so that unpickling is safe.
"""

from __future__ import annotations

import collections
import contextlib
import pickle
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import zmq

from gmi_drl.comm.errors import (
    MailboxClosed,
    MailboxTimeout,
    MessageError,
    PeerClosed,
    PeerRestarted,
)
from gmi_drl.comm.group.group import DEFAULT_TIMEOUT
from gmi_drl.runtime.process.progress import waiting
from gmi_drl.runtime.wire.packing import dump

from .files import check_private, next_number, numbers_of, remove_before, socket_path

_ALIGN: Final = 16
_IN_BAND_BYTES: Final = 4096  # smaller buffers are cheaper inside the pickle than as frames

Frame = bytes | memoryview


def encode(value: Any, what: str) -> list[Frame]:
    """Encodes `value` in frames that share its memory; MessageError names `what` if it cannot."""
    try:
        payload, out_of_band = dump(value, _IN_BAND_BYTES)
        return [payload, *out_of_band.buffers]
    except Exception as error:  # whatever a __reduce__ raises
        raise MessageError(
            f"{what} cannot be pickled: {type(error).__name__}: {error}. "
            "Send plain data, arrays, tensors, or objects of importable classes."
        ) from error


def decode(frames: Sequence[memoryview], what: str) -> Any:
    """Decodes the value; its arrays own the frames' memory, or a copy when it lies badly."""
    try:
        return pickle.loads(frames[0], buffers=[_writable(frame) for frame in frames[1:]])
    except Exception as error:  # whatever an import or a __setstate__ raises
        raise MessageError(
            f"{what} cannot be rebuilt here: {type(error).__name__}: {error}"
        ) from error


def _writable(frame: memoryview) -> memoryview:
    address = np.frombuffer(frame, np.uint8).ctypes.data
    if frame.readonly or address % _ALIGN:
        return memoryview(bytearray(frame))
    return frame


_MESSAGE, _TAKEN, _CLOSED = 1, 2, 3
_HEADER: Final = struct.Struct("<Iqq")  # kind, gmi_id and number of the mailbox that says it
_LINGER_MS: Final = 2000  # for what is still to be written to a mailbox that is open
_GLANCE_S: Final = 0.02  # between looks at whether the other one's socket is there


@dataclass(eq=False)
class _Peer:
    """The connections to one other GMI."""

    messages: zmq.Socket[bytes]
    notes: zmq.Socket[bytes]
    under_way: int = 0


class Mailbox:
    """The mailbox of GMI `gmi_id` among those of `directory` (mode 0700). Not for several threads.

    At most `capacity` messages to one GMI are under way, that is sent and not yet received by its
    `recv`. `timeout` is how long `send` waits for room, or for the other GMI to come up.
    """

    def __init__(
        self, directory: Path, gmi_id: int, capacity: int = 64, timeout: timedelta = DEFAULT_TIMEOUT
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity}: a mailbox holds 1 message or more.")
        self.gmi_id, self.capacity = gmi_id, capacity
        self._timeout_s = timeout.total_seconds()
        self._directory = directory
        check_private(directory)
        self._number = next_number(directory, gmi_id)
        self._path = socket_path(directory, gmi_id, self._number)
        # Two contexts, because terminating one waits for what it has to write: two mailboxes that
        # close at once must both still read while they do.
        self._outgoing: zmq.Context[zmq.Socket[bytes]] | None = zmq.Context()
        self._outgoing.linger = 0  # where nobody closes: the process dies, and is not to wait
        self._incoming: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox = self._incoming.socket(zmq.PULL)
        self._inbox.set_hwm(0)  # the capacity is what bounds it
        self._inbox.bind(f"ipc://{self._path}")
        remove_before(directory, gmi_id, self._number)  # now: there is always one to be seen
        self._peers: dict[int, _Peer] = {}
        self._arrived: dict[int, collections.deque[list[zmq.Frame]]] = {}
        self._finished: set[int] = set()  # the GMIs that have closed their mailboxes
        self._known: dict[int, int] = {}  # the number of each known GMI's mailbox
        self._restarted: set[int] = set()  # the restarted GMIs that the caller was not told of yet

    def send(self, dst: int, data: Any, timeout: timedelta | None = None) -> None:
        """Sends `data` to GMI `dst`; returns at once while fewer than `capacity` are under way.

        What is sent is what `data` is now: it may be changed afterwards. MailboxTimeout names
        `dst` if it takes none in time, PeerClosed if it has closed, PeerRestarted if it was
        restarted; MessageError if `data` cannot be pickled. After any of these nothing was sent.
        """
        frames = encode(data, f"the message to gmi {dst}")
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        deadline_s = time.monotonic() + limit_s
        peer = self._reach(dst, limit_s, deadline_s)
        self._check_there(dst)
        while peer.under_way >= self.capacity:
            if not self._wait_briefly(deadline_s):
                raise MailboxTimeout(
                    f"send timed out after {limit_s:g} s: gmi {dst} has not received any of the "
                    f"last {peer.under_way} messages, which is all its mailbox takes. "
                    "Receive more often there, or raise the capacity.",
                    dst,
                )
            self._check_there(dst)
            self._check_restarted(dst)
        peer.under_way += 1
        peer.messages.send_multipart([self._header(_MESSAGE), *frames], copy=True)

    def recv(self, src: int, timeout: timedelta | None = None) -> Any:
        """Receives the next message of GMI `src`, in the order of its sends; waits for it.

        The arrays and tensors in it belong to the caller. MailboxTimeout names `src`; PeerClosed
        says that it has closed and all its messages have been received, PeerRestarted that it was
        restarted, and that messages of before are lost.
        """
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        deadline_s = time.monotonic() + limit_s
        self._take_in()
        self._check_restarted(src)
        while not (queue := self._arrived.setdefault(src, collections.deque())):
            if src in self._finished:
                raise PeerClosed(
                    f"gmi {src} has closed its mailbox and sends nothing more to gmi {self.gmi_id}",
                    src,
                )
            if not self._wait_briefly(deadline_s):
                is_open = bool(numbers_of(self._directory, src))
                raise MailboxTimeout(
                    f"recv timed out after {limit_s:g} s: gmi {src} has sent nothing to gmi "
                    f"{self.gmi_id}" + ("" if is_open else "; it has no mailbox open"),
                    src,
                )
            self._check_restarted(src)
        frames = queue.popleft()
        if peer := self._connect(src):
            peer.notes.send(self._header(_TAKEN))
        return decode([frame.buffer for frame in frames], f"a message of gmi {src}")

    def close(self) -> None:
        """Says goodbye behind the last messages and closes. Calling it again is fine.

        Messages to a mailbox that is open get there; waits for that, 2 s at most.
        """
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is None:
            return
        self._path.unlink(missing_ok=True)
        for peer in self._peers.values():
            with contextlib.suppress(zmq.ZMQError):
                peer.messages.send(self._header(_CLOSED))
        for dst, peer in self._peers.items():
            peer.messages.close(_LINGER_MS if self._is_there(dst) else 0)
            peer.notes.close(_LINGER_MS if self._is_there(dst) else 0)
        outgoing.term()
        self._inbox.close(0)
        self._incoming.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> zmq.Context[zmq.Socket[bytes]]:
        if self._outgoing is None:
            raise MailboxClosed(f"the mailbox of gmi {self.gmi_id} has been closed here")
        return self._outgoing

    def _reach(self, dst: int, limit_s: float, deadline_s: float) -> _Peer:
        """Connects to `dst`; waits until it has a mailbox."""
        self._take_in()
        self._check_restarted(dst)
        while (peer := self._connect(dst)) is None:
            if dst in self._finished:
                self._check_there(dst)
            if not self._wait_briefly(deadline_s):
                raise MailboxTimeout(
                    f"send timed out after {limit_s:g} s: gmi {dst} has opened no mailbox in "
                    f"{self._directory}. Is there a GMI {dst} in the layout, and is it running?",
                    dst,
                )
        return peer

    def _connect(self, dst: int) -> _Peer | None:
        """Connects to `dst`; None if it has no mailbox (not yet, or not any more)."""
        if dst in self._peers:
            return self._peers[dst]
        if dst in self._finished or (number := self._present(dst)) is None:
            return None
        self._known[dst] = number
        outgoing = self._check_open()
        sockets = [outgoing.socket(zmq.PUSH) for _ in range(2)]
        for socket in sockets:
            socket.set_hwm(0)
            socket.connect(f"ipc://{socket_path(self._directory, dst, number)}")
        self._peers[dst] = _Peer(sockets[0], sockets[1])
        return self._peers[dst]

    def _header(self, kind: int) -> bytes:
        return _HEADER.pack(kind, self.gmi_id, self._number)

    def _is_there(self, dst: int) -> bool:
        return dst not in self._finished and self._present(dst) is not None

    def _present(self, gmi_id: int) -> int | None:
        """Returns which mailbox a GMI has open, or had when it was killed; None without one."""
        last = self._known.get(gmi_id)
        if last is not None and socket_path(self._directory, gmi_id, last).exists():
            return last
        numbers = numbers_of(self._directory, gmi_id)
        return numbers[-1] if numbers else None

    def _check_restarted(self, gmi_id: int) -> None:
        """Raises PeerRestarted, once, when a GMI we know has another mailbox now."""
        if (last := self._known.get(gmi_id)) is not None:
            number = self._present(gmi_id)
            if number is not None and number > last:
                self._forget(gmi_id, number)
        if gmi_id in self._restarted:
            self._restarted.remove(gmi_id)
            raise PeerRestarted(
                f"gmi {gmi_id} was restarted: messages between gmi {self.gmi_id} and it that were "
                "under way are lost. Begin the exchange anew.",
                gmi_id,
            )

    def _forget(self, gmi_id: int, number: int) -> None:
        """Drops what belonged to the mailbox before `number`."""
        self._known[gmi_id] = number
        self._arrived.pop(gmi_id, None)
        self._finished.discard(gmi_id)
        self._restarted.add(gmi_id)
        if peer := self._peers.pop(gmi_id, None):
            peer.messages.close(0)
            peer.notes.close(0)

    def _check_there(self, dst: int) -> None:
        if not self._is_there(dst):
            raise PeerClosed(f"gmi {dst} has closed its mailbox and receives nothing more", dst)

    def _wait_briefly(self, deadline_s: float) -> bool:
        """Waits a moment for something to come in; False when the deadline has passed."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        with waiting:
            self._inbox.poll(max(1, int(min(left_s, _GLANCE_S) * 1000)))
        self._take_in()
        return True

    def _take_in(self) -> None:
        """Sorts what has come in by sender."""
        self._check_open()
        while self._inbox.poll(0):
            header, *frames = self._inbox.recv_multipart(copy=False)
            kind, src, number = _HEADER.unpack(header.buffer)
            current = self._known.setdefault(src, number)
            if number > current:
                self._forget(src, number)
            if number < current:  # written by one that is dead
                continue
            if kind == _MESSAGE:
                self._arrived.setdefault(src, collections.deque()).append(frames)
            elif kind == _CLOSED:
                self._finished.add(src)
            elif src in self._peers:
                self._peers[src].under_way -= 1
