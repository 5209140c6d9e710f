"""Chooses the transport that joins two ends, from where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from .cuda_ipc import create_cuda
from .doorbell import DoorbellSpec
from .protocol import LinkSpec
from .ring import create_ring
from .zeromq import create_zmq

TransportKind = Literal["ring", "cuda", "ipc", "tcp"]


@dataclass(frozen=True)
class _Request:
    """The arguments of `create_link`."""

    source: str
    target: str
    directory: Path | None
    doorbell: DoorbellSpec | None
    address: str
    port: int

    def over_zeromq(self, kind: Literal["ipc", "tcp"]) -> LinkSpec:
        if self.directory is None:
            raise ValueError(f"a {kind} link needs a private folder: pass directory=.")
        return create_zmq(
            self.source, self.target, self.directory, kind, address=self.address, port=self.port
        )


# What makes a link of each kind: a new transport is a file and a line here.
_CREATE: Final[dict[TransportKind, Callable[[_Request], LinkSpec]]] = {
    "ring": lambda request: create_ring(request.source, request.target, request.doorbell),
    "cuda": lambda request: create_cuda(request.source, request.target, request.doorbell),
    "ipc": lambda request: request.over_zeromq("ipc"),
    "tcp": lambda request: request.over_zeromq("tcp"),
}


def choose_kind(same_host: bool = True, gpu: bool = False) -> TransportKind:
    """Returns the kind. `gpu`: both ends use one GPU, or one MIG instance, and may share memory."""
    if not same_host:
        return "tcp"
    return "cuda" if gpu else "ring"


def create_link(
    source: str,
    target: str,
    *,
    directory: Path | None = None,
    same_host: bool = True,
    gpu: bool = False,
    doorbell: DoorbellSpec | None = None,
    address: str = "127.0.0.1",
    port: int = 0,
    kind: TransportKind | None = None,
) -> LinkSpec:
    """Makes a link from `source` to `target`, which are named as errors shall name them.

    The launcher makes it and gives it to the processes at both ends. `directory` is the run's
    private folder (mode 0700), which links with sockets need. `doorbell` is that of the receiving
    process, if it has several links. `address` and `port` are where the receiver of a tcp link
    listens: on this host alone unless an address is given, at a port that is free unless one is
    given (for another host, give one). `kind` overrules the choice.
    """
    kind = kind or choose_kind(same_host, gpu)
    if kind not in _CREATE:
        raise ValueError(f"kind {kind!r}: a link is one of {', '.join(_CREATE)}. Use one of them.")
    return _CREATE[kind](_Request(source, target, directory, doorbell, address=address, port=port))
