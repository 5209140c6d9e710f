"""Guards sockets between hosts: CURVE, with a list of the keys that are let in.

libzmq asks an authenticator in the process about each key (ZAP, ZeroMQ RFC 27). This one is asked
whenever the owner of the socket looks for messages, so that no thread is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

PIECE_BYTES: Final = 1 << 20  # the most that a frame may carry
# Of a frame that comes, with the 33 bytes that CURVE adds. Whoever is at the other end can send one
# before it has shown a key, and libzmq takes memory for all of it.
_FRAME_BYTES: Final = PIECE_BYTES + 1024
_ZAP: Final = "inproc://zeromq.zap.01"
_MOST_KEYS: Final = 1000  # refused keys that are remembered
# That may wait for `look`, of some 128 bytes each; a connection makes three. If 1,000 more wait,
# libzmq's thread does, and no connection of the socket goes on.
_MOST_EVENTS: Final = 100_000
_EVENTS: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def secure(one: zmq.Socket[bytes], server_public: bytes, public: bytes, secret: bytes) -> None:
    """Makes a socket that is to connect one that speaks to whoever has the key of the server."""
    one.maxmsgsize = _FRAME_BYTES
    one.curve_serverkey = server_public
    one.curve_publickey, one.curve_secretkey = public, secret


class Authenticator:
    """Lets in whoever has one of the keys, Z85, which may be changed at any time; nobody else.

    What a socket receives has the key of its sender as "User-Id".
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Collection[bytes]) -> None:
        self.keys = keys
        self.refused: Counter[bytes] = Counter()  # counts by key, of the first _MOST_KEYS
        self.socket = context.socket(zmq.REP)  # readable when there is something to answer
        self.socket.bind(_ZAP)

    def guard(self, one: zmq.Socket[bytes], public: bytes, secret: bytes) -> None:
        """Makes a socket that is to listen one that speaks to those with a key alone.

        Before it is bound: a listener has the options that its socket had then.
        """
        one.maxmsgsize = _FRAME_BYTES
        one.curve_server = True
        one.curve_publickey, one.curve_secretkey = public, secret
        one.zap_domain = b"gmi-drl"

    def answer(self) -> None:
        """Answers all that is asked now."""
        while self.socket.poll(0):
            version, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart()
            key = z85.encode(credentials[0]) if len(credentials) == 1 else b""
            allowed = mechanism == b"CURVE" and key in self.keys
            if not allowed and (key in self.refused or len(self.refused) < _MOST_KEYS):
                self.refused[key] += 1
            status = (b"200", b"OK", key) if allowed else (b"400", b"not a key of this run", b"")
            self.socket.send_multipart([version, request, *status, b""])


class ConnectionMonitor:
    """The state of a socket's connections, and why one does not come about."""

    def __init__(self, one: zmq.Socket[bytes]) -> None:
        self._socket = one
        address = f"inproc://monitor.{one.FD}"
        one.monitor(address, _EVENTS)
        self.socket = one.context.socket(zmq.PAIR)  # readable when something has happened
        self.socket.rcvhwm = _MOST_EVENTS
        self.socket.connect(address)
        self.reached = False  # somebody was there
        self.up = False  # a handshake was completed, and no connection lost since
        self.failed = ""  # how the last handshake that failed did
        # Of a socket that listens: connections, less those completed, and those broken off there.
        self.refused = 0
        self.failures = 0  # handshakes of somebody without a right key, or who spoke otherwise

    def look(self) -> bool:
        """Takes in what has happened; returns whether a connection was lost."""
        lost = False
        while self.socket.poll(0):
            message = recv_monitor_message(self.socket)
            event, value = message["event"], message["value"]
            if event in (zmq.EVENT_CONNECTED, zmq.EVENT_ACCEPTED):
                self.reached = True
                self.refused += event == zmq.EVENT_ACCEPTED
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.up = True
                self.refused -= 1
            elif event == zmq.EVENT_DISCONNECTED:
                lost, self.up = lost or self.up, False
            else:
                self.failed = _failure_text(event, value)
                broken_off = event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # by the other end
                self.failures += not broken_off
                self.refused -= broken_off
        return lost

    def close(self) -> None:
        """Ends the monitoring."""
        self.look()  # libzmq's thread may wait for that, and would be waited for
        self._socket.monitor(None, 0)
        self.socket.close(0)  # else its context cannot end


def _failure_text(event: int, value: int) -> str:
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return f"the key was refused (status {value})"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return f"what came was not encrypted for this end (error {value:#x})"
    return "the other end broke it off"
