"""Moves gradients, reduced in shared memory, and messages between GMIs.

Importing this imports no torch; the names that need it are loaded when asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

_LATER = {"assert_identical": ".group.checksum", "Mailbox": ".mailbox.mailbox"}

__all__ = [
    "CommError", "Group", "GroupClosed", "GroupFinished", "GroupMismatch", "GroupReformed",
    "GroupSpec", "Mailbox", "MailboxClosed", "MailboxError", "MailboxTimeout", "MessageError",
    "ParametersDiffer", "PeerClosed", "PeerLeft", "PeerRestarted", "ReduceOp", "ReduceTimeout",
    "Reducer", "RingBroken", "Wire", "assert_identical", "create_group", "solo_group",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
