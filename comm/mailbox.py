"""Mailboxes: messages of any kind between the GMIs of a run, over ZeroMQ in a private folder.

Every mailbox owns one socket file, `gmi<id>`, where it receives; to each GMI it writes to it has
two connections, one for messages and one for what it tells back. A receiver tells a sender that it
has taken a message (`TAKEN`), so that a sender knows how many are under way to it and waits when
they are as many as the capacity. Nothing is ever dropped while both are open; a mailbox that closes
says so (`CLOSED`) behind its last message.

Only processes of this user can reach the folder, which is checked, so that unpickling is safe.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import stat
import struct
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self

import zmq

from .encode import decode, encode
from .errors import MailboxClosed, MailboxError, MailboxTimeout, PeerClosed
from .group import DEFAULT_TIMEOUT

_MESSAGE, _TAKEN, _CLOSED = 1, 2, 3
_HEADER: Final = struct.Struct("<Iq")  # kind, gmi_id of who says it
_LONGEST_PATH: Final = 107  # sun_path of a Unix socket, without its final zero
_LINGER_MS: Final = 2000  # for what is still to be written to a mailbox that is open
_GLANCE_S: Final = 0.02  # between looks at whether the other one's socket is there


class _Peer:
    """What this mailbox knows of one other GMI."""

    def __init__(self, messages: zmq.Socket[bytes], notes: zmq.Socket[bytes]) -> None:
        self.messages = messages
        self.notes = notes
        self.under_way = 0


class Mailbox:
    """The mailbox of GMI `gmi_id` among those of `directory` (mode 0700). Not for several threads.

    At most `capacity` messages to one GMI are under way, that is sent and not yet received by its
    `recv`. `timeout` is how long `send` waits for room, or for the other GMI to come up.
    """

    def __init__(
        self,
        directory: Path,
        gmi_id: int,
        capacity: int = 64,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity}: a mailbox holds 1 message or more.")
        self.gmi_id = gmi_id
        self.capacity = capacity
        self._timeout_s = timeout.total_seconds()
        self._directory = directory
        self._path = _socket_path(directory, gmi_id)
        _check_private(directory)
        _remove_stale(self._path, gmi_id)
        # Two contexts, because terminating one waits for what it has to write: two mailboxes that
        # close at once must both still read while they do.
        self._outgoing: zmq.Context[zmq.Socket[bytes]] | None = zmq.Context()
        self._incoming: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox = self._incoming.socket(zmq.PULL)
        self._inbox.set_hwm(0)  # the capacity is what bounds it
        self._inbox.bind(f"ipc://{self._path}")
        self._peers: dict[int, _Peer] = {}
        self._arrived: dict[int, collections.deque[list[zmq.Frame]]] = {}
        self._finished: set[int] = set()  # those who have said that they are closed

    def send(self, dst: int, data: Any, timeout: timedelta | None = None) -> None:
        """Sends `data` to GMI `dst`; returns at once while fewer than `capacity` are under way.

        What is sent is what `data` is now: it may be changed afterwards. MailboxTimeout names
        `dst` if it takes none in time, PeerClosed if it has closed; MessageError if `data` cannot
        be pickled. After any of these nothing of it was sent.
        """
        frames = encode(data, f"the message to gmi {dst}")
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        deadline_s = time.monotonic() + limit_s
        peer = self._reach(dst, limit_s, deadline_s)
        self._take_in()
        self._check_there(dst)
        while peer.under_way >= self.capacity:
            self._check_there(dst)
            if not self._glance(deadline_s):
                raise MailboxTimeout(
                    f"send timed out after {limit_s:g} s: gmi {dst} has not received any of the "
                    f"last {peer.under_way} messages, which is all its mailbox takes. "
                    "Receive more often there, or raise the capacity.",
                    dst,
                )
        peer.under_way += 1
        peer.messages.send_multipart([_HEADER.pack(_MESSAGE, self.gmi_id), *frames], copy=True)

    def recv(self, src: int, timeout: timedelta | None = None) -> Any:
        """The next message of GMI `src`, in the order of its sends; waits until there is one.

        The arrays and tensors in it belong to the caller. MailboxTimeout names `src`; PeerClosed
        says that it has closed and all its messages have been received.
        """
        self._check_open()
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        deadline_s = time.monotonic() + limit_s
        queue = self._arrived.setdefault(src, collections.deque())
        self._take_in()
        while not queue:
            if src in self._finished:
                raise PeerClosed(
                    f"gmi {src} has closed its mailbox and sends nothing more to gmi {self.gmi_id}",
                    src,
                )
            if not self._glance(deadline_s):
                there = _socket_path(self._directory, src).exists()
                raise MailboxTimeout(
                    f"recv timed out after {limit_s:g} s: gmi {src} has sent nothing to gmi "
                    f"{self.gmi_id}" + ("" if there else "; it has no mailbox open"),
                    src,
                )
        frames = queue.popleft()
        if peer := self._connect(src):
            peer.notes.send(_HEADER.pack(_TAKEN, self.gmi_id))
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
                peer.messages.send(_HEADER.pack(_CLOSED, self.gmi_id))
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
        """The connections to `dst`; waits until it has a mailbox."""
        self._check_open()
        while (peer := self._connect(dst)) is None:
            if dst in self._finished:
                self._check_there(dst)
            if not self._glance(deadline_s):
                raise MailboxTimeout(
                    f"send timed out after {limit_s:g} s: gmi {dst} has opened no mailbox in "
                    f"{self._directory}. Is there a GMI {dst} in the layout, and is it running?",
                    dst,
                )
        return peer

    def _connect(self, dst: int) -> _Peer | None:
        """The connections to `dst`, or None if it has no mailbox (not yet, or not any more)."""
        if dst in self._peers:
            return self._peers[dst]
        if not self._is_there(dst):
            return None
        outgoing = self._check_open()
        sockets = [outgoing.socket(zmq.PUSH) for _ in range(2)]
        for one in sockets:
            one.set_hwm(0)
            one.connect(f"ipc://{_socket_path(self._directory, dst)}")
        self._peers[dst] = _Peer(*sockets)
        return self._peers[dst]

    def _is_there(self, dst: int) -> bool:
        return dst not in self._finished and _socket_path(self._directory, dst).exists()

    def _check_there(self, dst: int) -> None:
        if not self._is_there(dst):
            raise PeerClosed(f"gmi {dst} has closed its mailbox and receives nothing more", dst)

    def _glance(self, deadline_s: float) -> bool:
        """Waits a moment for something to come in; False when the deadline has passed."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        self._inbox.poll(max(1, int(min(left_s, _GLANCE_S) * 1000)))
        self._take_in()
        return True

    def _take_in(self) -> None:
        """Sorts what has come in by sender."""
        self._check_open()
        while self._inbox.poll(0):
            header, *frames = self._inbox.recv_multipart(copy=False)
            kind, src = _HEADER.unpack(header.buffer)
            if kind == _MESSAGE:
                self._arrived.setdefault(src, collections.deque()).append(frames)
            elif kind == _CLOSED:
                self._finished.add(src)
            elif src in self._peers:
                self._peers[src].under_way -= 1


def _socket_path(directory: Path, gmi_id: int) -> Path:
    return directory / f"gmi{gmi_id}"


def _check_private(directory: Path) -> None:
    longest = len(os.fsencode(_socket_path(directory, 9999)))
    if longest > _LONGEST_PATH:
        raise MailboxError(
            f"{directory}: a socket there would have a path of {longest} bytes; Unix sockets have "
            f"at most {_LONGEST_PATH}. Use a shorter folder, such as one in /tmp."
        )
    try:
        status = directory.lstat()
    except OSError as error:
        raise MailboxError(f"{directory}: {error.strerror}. Make it with mode 0700.") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise MailboxError(f"{directory} is not a folder of this user; messages are trusted there.")
    if mode := stat.S_IMODE(status.st_mode) & 0o077:
        raise MailboxError(
            f"{directory} has mode {stat.S_IMODE(status.st_mode):04o}: others may use it "
            f"({mode:03o}), and messages from there are trusted. chmod 0700 it."
        )


def _remove_stale(path: Path, gmi_id: int) -> None:
    """Removes the socket file of a dead mailbox; MailboxError if its owner lives."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:  # nobody listens
            path.unlink(missing_ok=True)
            return
    raise MailboxError(
        f"gmi {gmi_id} has a mailbox open in {path.parent} already; one GMI has one."
    )
