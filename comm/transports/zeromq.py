"""A ZeroMQ link joins processes of two hosts by tcp, encrypted and authenticated.

The receiver listens, a ROUTER; the sender connects, a DEALER. A sender's slots are memory of its
own, and a slot is free again when the receiver has told it that the packet was released: the same
back-pressure as in shared memory. What is not released can be sent again.

- The sender says HELLO with its incarnation and, for each stream, the first number that is not
  released, and sends nothing before it is told WELCOME. Whenever the connection was lost it opens a
  new one, so that nothing of the old one can come later, says HELLO again, and after WELCOME sends
  all that is not released once more, in order.
- A receiver takes each number of a stream once, in order. It drops a packet that it has had, and
  says again that it was released, if it was. A receiver that replaces another begins with the
  numbers in HELLO, and so is given again what its predecessor had not released, or whose release
  was not yet written out.
- Numbers of a new incarnation begin at 0. What the one before had sent whole is still given; the
  rest is lost with its memory. Incarnations are counted in files of the folder, one each, made
  exclusively; the receiver refuses a lower one than it knows.
- CURVE with keys that the launcher has made. The sender knows the receiver's public key, and
  the receiver accepts the sender's public key alone: it is libzmq's authenticator (ZAP) itself, and
  answers whenever it looks for packets, so that no thread is needed. Payloads are covered by that.
  Keys travel in the LinkSpec, and are not shown in its text; the secret of an end on another host
  never leaves that host (between_hosts.py).

No thread of ours runs: each end works when its methods are called, libzmq's own thread does the
rest, and one of pyzmq's lets go of packets that were sent. `close` of a sender waits some seconds
for the receiver to say that it has everything, also for one that is just being replaced; if that
receiver is killed afterwards, what it has is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gmi_drl.comm.errors import LinkError, MailboxError
from gmi_drl.comm.mailbox.files import check_private
from gmi_drl.comm.shm.liveness import is_alive, start_ticks

from .protocol import LinkSpec, Receiver, Sender


@dataclass(frozen=True)
class CurveKeys:
    """Both key pairs of a link, Z85. An end on another host keeps its secret: that is empty."""

    server_public: bytes
    server_secret: bytes = field(repr=False)
    client_public: bytes
    client_secret: bytes = field(repr=False)


class _Port:
    """Keeps a port of this host from being given to others: bound, but not listened at."""

    def __init__(self, address: str) -> None:
        try:
            holder = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            with holder:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # libzmq sets it too
                holder.bind((address, 0))
                self.number: int = holder.getsockname()[1]
                self._fd = holder.detach()
        except OSError as error:
            raise LinkError(
                f"{address} cannot be listened at ({error.strerror}). Give an address of this host."
            ) from error

    def __del__(self) -> None:
        if fd := getattr(self, "_fd", 0):
            os.close(fd)


@dataclass(frozen=True)
class ZmqSpec(LinkSpec):
    """A link over ZeroMQ; plain data, which may travel by any private way."""

    link: int
    directory: Path
    endpoint: str
    keys: CurveKeys = field(repr=False)
    _port: _Port | None = field(default=None, repr=False, compare=False)

    def _ends(self) -> tuple[type[Sender], type[Receiver]]:
        from .zeromq_ends import ZmqReceiver, ZmqSender

        return ZmqSender, ZmqReceiver

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, item.name) for item in dataclasses.fields(self)]
        return ZmqSpec, tuple(values[:-1])  # the port stays with the launcher


def create_zmq(
    source: str, target: str, directory: Path, address: str = "127.0.0.1",
    keys: CurveKeys | None = None,
) -> ZmqSpec:  # fmt: skip
    """Makes a link whose receiver listens at an address of this host.

    `directory` is private, on this host. `keys`: None for keys for this link alone.
    """
    _check_folder(directory)
    link, port = secrets.randbits(32), _Port(address)
    keys = keys or CurveKeys(*key_pair(), *key_pair())
    host = f"[{address}]" if ":" in address else address
    endpoint = f"tcp://{host}:{port.number}"
    return ZmqSpec("tcp", source, target, link, directory, endpoint=endpoint, keys=keys, _port=port)


def key_pair() -> tuple[bytes, bytes]:
    """Makes a public and a secret CURVE key, Z85; LinkError where libzmq has no CURVE."""
    import zmq

    if not zmq.has("curve"):
        raise LinkError(
            f"this libzmq ({zmq.zmq_version()}) has no CURVE, and nothing goes over a network "
            "without. Install pyzmq from a wheel."
        )
    return zmq.curve_keypair()


def count_incarnation(spec: ZmqSpec) -> int:
    """Counts this sender of the link: 0, 1, ...; LinkError if the last one lives."""
    with contextlib.suppress(FileExistsError):
        spec.directory.mkdir(mode=0o700)  # on another host it is not there yet
    _check_folder(spec.directory)
    stem = f"l{spec.link:08x}."
    while True:
        numbers = [
            int(name.removeprefix(stem))
            for name in os.listdir(spec.directory)
            if name.startswith(stem)
        ]
        last = max(numbers, default=-1)
        if last >= 0:
            process = (spec.directory / f"{stem}{last}").read_text().split()
            if len(process) == 2 and is_alive(int(process[0]), int(process[1])):
                raise LinkError(
                    f"{spec.name}: its sender is open already, in process {process[0]}. A link has "
                    "one sender; a new one takes over when that process is gone."
                )
        with contextlib.suppress(FileExistsError):  # another one was quicker
            mode = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            fd = os.open(spec.directory / f"{stem}{last + 1}", mode, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(f"{os.getpid()} {start_ticks(os.getpid()) or 0}")
            return last + 1


def _check_folder(directory: Path) -> None:
    try:
        check_private(directory)
    except MailboxError as error:
        raise LinkError(str(error)) from error
