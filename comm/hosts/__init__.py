"""Reduces among hosts: one level above what each host does by itself.

Importing this imports neither torch nor ZeroMQ.
"""

from .roster import (
    Endpoint,
    HostSpec,
    Roster,
    next_roster,
    read_endpoint,
    read_roster,
    write_roster,
)

__all__ = [
    "Endpoint", "HostSpec", "Roster", "next_roster", "read_endpoint", "read_roster", "write_roster",
]  # fmt: skip
