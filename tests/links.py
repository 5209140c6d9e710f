"""Runs the ends of links in processes of their own, to be killed and started again."""

import contextlib
import os
import socket
import struct
from multiprocessing import reduction

from fork_context import CONTEXT
from gmi_drl.comm.transports import DoorbellSpec, ring_ends
from gmi_drl.comm.transports.cuda_ipc import CudaSpec
from gmi_drl.comm.transports.ring import RingSpec
from gmi_drl.runtime import Memfd

assert ring_ends  # loaded before a test says that processes are gone

GREETING = (b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE").ljust(64, b"\0")  # of ZMTP 3.0
LONG_COMMAND = b"\x06" + struct.pack(">Q", 300 << 20)  # its head


def greeted(connection):
    """Greets the other end of a connection as a stranger; returns it when that has greeted."""
    connection.settimeout(20)
    connection.sendall(GREETING)
    greeting = b""
    while len(greeting) < len(GREETING):
        greeting += connection.recv(len(GREETING) - len(greeting))
    return connection


def assert_thrown_out(stranger):
    """Sends the head of a command that is too long, upon which the other end hangs up."""
    with contextlib.suppress(ConnectionError):
        stranger.sendall(LONG_COMMAND)
        while stranger.recv(4096):  # what was said before
            pass


@contextlib.contextmanager
def listening():
    """Yields a stranger's socket that listens, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listens:
        listens.settimeout(20)
        yield listens, listens.getsockname()[1]


class Passed:
    """A link that goes to a child of multiprocessing, with its descriptors if it has any."""

    def __init__(self, spec):
        self.spec = spec

    def __reduce__(self):
        spec = self.spec
        if isinstance(spec, CudaSpec):
            return CudaSpec, (spec.kind, spec.source, spec.target, Passed(spec.ring))
        if not isinstance(spec, RingSpec):
            return _plain, (spec,)
        fds = (reduction.DupFd(memfd.fd) for memfd in (spec.memfd, spec.doorbell.memfd))
        return _ring, (spec.kind, spec.source, spec.target, spec.link, *fds)


def _plain(spec):
    return spec


def _ring(kind, source, target, link, memfd, doorbell):
    memfds = (Memfd(fd.detach(), "link") for fd in (memfd, doorbell))
    return RingSpec(kind, source, target, link, next(memfds), DoorbellSpec(next(memfds)))


def _main(body, link, connection, args):
    import torch

    torch.set_num_threads(1)
    try:
        outcome = body(link, *args)
    except Exception as error:
        outcome = error
    connection.send(outcome)


class End:
    """One end of a link: `body(link, *args)` in a process, until it is killed or returns."""

    def __init__(self, body, spec, *args):
        self._start = body, spec, args
        self.process = None
        self.start()

    def start(self):
        body, spec, args = self._start
        self._receive, send = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=_main, args=(body, Passed(spec), send, args))
        self.process.start()
        send.close()

    def restart(self):
        """Kills the process and starts another in its place."""
        self.process.kill()
        self.process.join()
        self._receive.close()
        self.start()

    def outcome(self, within_s=40.0):
        """What the body returned or raised."""
        assert self._receive.poll(within_s), f"{self._start[0].__name__} goes on for {within_s} s"
        try:
            return self._receive.recv()
        except EOFError:
            self.process.join()
            raise AssertionError(f"died: {self.process.exitcode}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.join()
        self._receive.close()


def lines(path):
    """The whole lines of a file that somebody appends to; [] while there is none."""
    if not os.path.exists(path):
        return []
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def pipe():
    """(receiving, sending) end of a pipe that can be passed to ends."""
    return CONTEXT.Pipe(duplex=False)
