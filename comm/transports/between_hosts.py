"""Makes links from one host to another: each host makes the ends that are on it.

The receiver of a link listens at a port that its host keeps for it. A sender needs to know that
port, and each end the public key of the other; whoever runs the hosts hands these round. A host has
one pair of keys for all of its ends, whose secret stays there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gmi_drl.comm.errors import LinkError

from .protocol import LinkSpec
from .zeromq import CurveKeys, ZmqSpec, create_zmq, key_pair


@dataclass(frozen=True)
class PeerInfo:
    """Says what other hosts need to know of the ends on one host; none of it is secret."""

    key: bytes  # its public CURVE key, Z85
    listening: Mapping[tuple[str, str], tuple[int, str]]  # source, target: number, endpoint


class CrossHostLinks:
    """Makes the ends on this host of its links with other hosts."""

    def __init__(self, address: str, directory: Path) -> None:
        """`address`: of this host, where its receivers listen; `directory`: private, on it."""
        self._address, self._directory = address, directory
        self._public, self._secret = key_pair()
        self._receivers: dict[tuple[str, str], ZmqSpec] = {}  # they keep their ports

    def listen(self, source: str, target: str) -> None:
        """Keeps a port for the receiver of a link from another host."""
        keys = CurveKeys(self._public, self._secret, b"", b"")
        self._receivers[source, target] = create_zmq(
            source, target, self._directory, self._address, keys
        )

    @property
    def peer_info(self) -> PeerInfo:
        """Returns what the other hosts need to know."""
        listening = {names: (spec.link, spec.endpoint) for names, spec in self._receivers.items()}
        return PeerInfo(self._public, listening)

    def receiver(self, source: str, target: str, sender: PeerInfo) -> LinkSpec:
        """Returns the link for the receiver's end, which lets in the host of its sender alone."""
        spec = self._receivers[source, target]
        return replace(spec, keys=replace(spec.keys, client_public=sender.key))

    def sender(self, source: str, target: str, receiver: PeerInfo) -> LinkSpec:
        """Returns the link for the sender's end; LinkError if nobody listens for it."""
        if (source, target) not in receiver.listening:
            raise LinkError(
                f"link from {source} to {target}: the host of its receiver has no such link. All "
                "hosts must be told of the same layout."
            )
        link, endpoint = receiver.listening[source, target]
        keys = CurveKeys(receiver.key, b"", self._public, self._secret)
        return ZmqSpec("tcp", source, target, link, self._directory, endpoint=endpoint, keys=keys)
