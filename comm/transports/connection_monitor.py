"""Reads why a connection does not come about, from libzmq's monitor of a socket."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class ConnectionMonitor:
    """The state of a socket's connections."""

    def __init__(self, one: zmq.Socket[bytes]) -> None:
        self._socket = one
        self._monitor = one.get_monitor_socket(_EVENTS)
        self.reached = False  # somebody was there
        self.up = False  # a handshake was completed, and no connection lost since
        self.failed = ""  # how the last handshake that failed did

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """Returns what becomes readable when something has happened."""
        return self._monitor

    def look(self) -> bool:
        """Takes in what has happened; whether a connection that had come about was lost."""
        lost = False
        while self._monitor.poll(0):
            message = recv_monitor_message(self._monitor)
            event, value = message["event"], message["value"]
            if event in (zmq.EVENT_CONNECTED, zmq.EVENT_ACCEPTED):
                self.reached = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.up = True
            elif event == zmq.EVENT_DISCONNECTED:
                lost, self.up = lost or self.up, False
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.failed = f"the key was refused (status {value})"
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self.failed = f"what came was not encrypted for this end (error {value:#x})"
            else:
                self.failed = "the other end broke it off"
        return lost

    def close(self) -> None:
        """Ends the monitoring."""
        self._socket.disable_monitor()
        self._monitor.close(0)  # else its context cannot end
