"""The process of one replica, as its client sees it."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .chain_wire import Reader


class Member:
    """One replica's process, and our end of its socket; sending never blocks."""

    def __init__(self, number: int, selector: selectors.BaseSelector, chain: Any) -> None:
        self.number = number
        self.chain = chain
        self.ready = False
        self.asked_s = 0.0
        self._selector = selector
        self._out: collections.deque[tuple[memoryview, list[int]]] = collections.deque()
        self.sock, theirs = socket.socketpair()
        try:
            self.process = _start_process(theirs.fileno())
        except BaseException:
            self.sock.close()
            raise
        finally:
            theirs.close()
        self.sock.setblocking(False)
        self.reader = Reader(self.sock)
        selector.register(self.sock, selectors.EVENT_READ, self)

    def send(self, data: bytes, fd: int = -1) -> None:
        """Sends, or keeps for `send_more`. The descriptor is ours to close."""
        self._out.append((memoryview(data), [] if fd < 0 else [fd]))
        if len(self._out) == 1:
            self.send_more()

    def send_more(self) -> None:
        try:
            while self._out:
                data, fds = self._out[0]
                sent = socket.send_fds(self.sock, [data], fds, socket.MSG_NOSIGNAL)
                for fd in fds:
                    os.close(fd)
                if sent < len(data):
                    self._out[0] = (data[sent:], [])
                else:
                    self._out.popleft()
        except BlockingIOError:
            self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError:  # it is gone: the next read says so
            self._forget_out()
            self._watch(selectors.EVENT_READ)
        else:
            self._watch(selectors.EVENT_READ)

    def end(self) -> None:
        """Kills the process, which nobody waits for here."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(self.sock)
        self._forget_out()
        self.sock.close()
        self.process.kill()

    def _watch(self, events: int) -> None:
        if self._selector.get_key(self.sock).events != events:
            self._selector.modify(self.sock, events, self)

    def _forget_out(self) -> None:
        for _, fds in self._out:
            for fd in fds:
                os.close(fd)
        self._out.clear()


def _start_process(control_fd: int) -> subprocess.Popen[bytes]:
    # The package as this process has it, installed or not.
    package_root = str(Path(sys.modules["gmi_drl"].__file__ or "").parents[1])
    given = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([package_root, given] if given else [package_root])
    return subprocess.Popen(
        [sys.executable, "-P", "-m", f"{__package__}.replica", str(control_fd), str(os.getpid())],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(control_fd,),
        start_new_session=True,  # Ctrl-C is not for them
    )
