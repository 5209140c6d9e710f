"""Asks whether the head of a Ray cluster answers, without Ray."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

# How HTTP/2, and so gRPC, begins (RFC 9113, section 3.4), and settings that say nothing.
_GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


def probe(address: str, timeout_s: float) -> None:
    """Returns when the head at `address` (host:port) has said something; OSError if it does not.

    The kernel connects to a hanging process, too, so the head has to answer something. One that
    speaks TLS answers in that, or hangs up. `timeout_s` is for each step.
    """
    host, _, port = address.rpartition(":")
    endpoint = (host.strip("[]"), int(port))
    with (
        socket.create_connection(endpoint, timeout=timeout_s) as connection,
        suppress(ConnectionResetError, BrokenPipeError),
    ):
        connection.sendall(_GREETING)
        connection.recv(1)
