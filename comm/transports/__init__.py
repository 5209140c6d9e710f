"""Links that experience goes over: one interface, chosen by where the two ends are.

Importing this imports no torch: a launcher makes links, the processes at their ends open them.
"""

from __future__ import annotations

from .packet import Packet, PacketHeader, Slot
from .protocol import LinkSpec, Receiver, Sender, StreamSpec

__all__ = [
    "LinkSpec",
    "Packet",
    "PacketHeader",
    "Receiver",
    "Sender",
    "Slot",
    "StreamSpec",
]
