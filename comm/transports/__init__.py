"""Links carry experience: one interface, chosen by where the two ends are.

Importing this imports no torch: a launcher makes links, the processes at their ends open them.
"""

from __future__ import annotations

from .choose import choose_kind, create_link
from .doorbell import DoorbellSpec, create_doorbell
from .packet import Packet, PacketHeader, PacketSlot
from .protocol import LinkSpec, Receiver, Sender, StreamSpec
from .waiting import wait_any

__all__ = [
    "DoorbellSpec",
    "LinkSpec",
    "Packet",
    "PacketHeader",
    "PacketSlot",
    "Receiver",
    "Sender",
    "StreamSpec",
    "choose_kind",
    "create_doorbell",
    "create_link",
    "wait_any",
]
