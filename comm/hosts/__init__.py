"""Reduces among hosts: one level above what each host does by itself.

Importing this imports neither torch nor ZeroMQ.
"""

from .roster import (
    Endpoint,
    GroupOutcome,
    HostSpec,
    Roster,
    next_roster,
    read_endpoint,
    read_outcome,
    read_roster,
    write_outcome,
    write_roster,
)

__all__ = [
    "Endpoint",
    "GroupOutcome",
    "HostSpec",
    "Roster",
    "next_roster",
    "read_endpoint",
    "read_outcome",
    "read_roster",
    "write_outcome",
    "write_roster",
]  # fmt: skip
