"""Which transport joins two ends, from where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, get_args

from .bell import BellSpec
from .cuda_ipc import create_cuda
from .protocol import LinkSpec
from .ring import create_ring
from .zeromq import create_zmq

Kind = Literal["ring", "cuda", "ipc", "tcp"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


def choose_kind(same_host: bool = True, gpu: bool = False) -> Kind:
    """`gpu`: both ends use one GPU, or one MIG instance, and may share its memory."""
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
    bell: BellSpec | None = None,
    address: str = "127.0.0.1",
    port: int = 0,
    kind: Kind | None = None,
) -> LinkSpec:
    """A new link from `source` to `target`, which are named as errors shall name them.

    The launcher makes it and gives it to the processes at both ends. `directory` is the run's
    private folder (mode 0700), which links with sockets need. `bell` is that of the receiving
    process, if it has several links. `address` and `port` are where the receiver of a tcp link
    listens: on this host alone unless an address is given, at a port that is free unless one is
    given (for another host, give one). `kind` overrules the choice.
    """
    kind = kind or choose_kind(same_host, gpu)
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: a link is one of {', '.join(KINDS)}. Use one of them.")
    if kind == "ring":
        return create_ring(source, target, bell)
    if kind == "cuda":
        return create_cuda(source, target, bell)
    if directory is None:
        raise ValueError(f"a {kind} link needs a private folder: pass directory=.")
    return create_zmq(source, target, directory, kind, address, port)
