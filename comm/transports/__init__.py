"""Links carry experience: one interface, chosen by where the two ends are.

Importing this imports no torch: a launcher makes links, the processes at their ends open them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .between_hosts import CrossHostLinks, PeerInfo
from .cuda_ipc import create_cuda
from .doorbell import DoorbellSpec, create_doorbell
from .packet import Packet, PacketHeader, PacketSlot
from .protocol import LinkSpec, Receiver, Sender, StreamSpec, wait_any
from .ring import create_ring
from .zeromq import create_zmq

__all__ = [
    "CrossHostLinks",
    "DoorbellSpec",
    "LinkSpec",
    "Packet",
    "PacketHeader",
    "PacketSlot",
    "PeerInfo",
    "Receiver",
    "Sender",
    "StreamSpec",
    "create_doorbell",
    "create_link",
    "wait_any",
]  # fmt: skip


def create_link(
    source: str, target: str, *, directory: Path | None = None, gpu: bool = False,
    doorbell: DoorbellSpec | None = None,
    kind: Literal["ring", "cuda", "tcp"] | None = None,
) -> LinkSpec:  # fmt: skip
    """Makes a link from `source` to `target` on this host, named as errors shall name them.

    The launcher makes it and gives it to the processes at both ends. `directory` is the run's
    private folder (mode 0700), which a tcp link needs. `gpu`: both ends use one GPU, or one
    MIG instance, and may share memory. `doorbell` is that of the receiving process, if it has
    several links. `kind` overrules the choice. Between hosts `CrossHostLinks` makes them.
    """
    kind = kind or ("cuda" if gpu else "ring")
    if kind == "ring":
        return create_ring(source, target, doorbell)
    if kind == "cuda":
        return create_cuda(source, target, doorbell)
    if kind != "tcp":
        raise ValueError(f"kind {kind!r}: a link is one of ring, cuda, tcp. Use one of them.")
    if directory is None:
        raise ValueError("a tcp link needs a private folder: pass directory=.")
    return create_zmq(source, target, directory)
