"""Moves gradients, reduced in shared memory, and messages between GMIs.

Importing this imports no torch; the names that need it are loaded when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gmi_drl.lazy import lazy

from .errors import (
    CommError,
    GroupClosed,
    GroupFinished,
    GroupMismatch,
    GroupReformed,
    MailboxClosed,
    MailboxError,
    MailboxTimeout,
    MessageError,
    ParametersDiffer,
    PeerClosed,
    PeerLeft,
    PeerRestarted,
    ReduceTimeout,
    RingBroken,
)
from .group.group import Group, ReduceOp, Reducer, Wire
from .reducers.group_spec import GroupSpec, create_group, solo_group

if TYPE_CHECKING:
    from .group.checksum import assert_identical
    from .mailbox.mailbox import Mailbox

__getattr__, __dir__ = lazy(
    __name__, {".group.checksum": ["assert_identical"], ".mailbox.mailbox": ["Mailbox"]}
)

__all__ = [
    "CommError", "Group", "GroupClosed", "GroupFinished", "GroupMismatch", "GroupReformed",
    "GroupSpec", "Mailbox", "MailboxClosed", "MailboxError", "MailboxTimeout", "MessageError",
    "ParametersDiffer", "PeerClosed", "PeerLeft", "PeerRestarted", "ReduceOp", "ReduceTimeout",
    "Reducer", "RingBroken", "Wire", "assert_identical", "create_group", "solo_group",
]  # fmt: skip
