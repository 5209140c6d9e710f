"""Links that experience goes over: one interface, chosen by where the two ends are.

Importing this imports no torch: a launcher makes links, the processes at their ends open them.
"""

from __future__ import annotations

from .bell import BellSpec, create_bell
from .choose import choose_kind, create_link
from .packet import Packet, PacketHeader, Slot
from .protocol import LinkSpec, Receiver, Sender, StreamSpec
from .waiting import wait_any

__all__ = [
    "BellSpec",
    "LinkSpec",
    "Packet",
    "PacketHeader",
    "Receiver",
    "Sender",
    "Slot",
    "StreamSpec",
    "choose_kind",
    "create_bell",
    "create_link",
    "wait_any",
]
