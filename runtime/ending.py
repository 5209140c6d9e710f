"""How actors are brought to an end, all of them at once."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from .link import ActorLink
from .protocol import Kind
from .refs import ObjectRef, wait_for

if TYPE_CHECKING:
    from .driver import Runtime

_TERM_S: Final = 0.5  # between SIGTERM and SIGKILL
DEATH_S: Final = 5.0  # how long a process may take to die of SIGKILL


def stop_links(runtime: Runtime, links: list[ActorLink], grace: timedelta, reason: str) -> None:
    """Asks, waits for `grace`, then SIGTERM, then SIGKILL, each to the whole process group."""
    for link in links:
        runtime.ask(link, Kind.CLOSE, reason)
    _await_deaths(links, grace.total_seconds())
    signal_links(runtime, links, signal.SIGTERM, _TERM_S, reason)
    signal_links(runtime, links, signal.SIGKILL, DEATH_S, reason)


def signal_links(
    runtime: Runtime, links: list[ActorLink], number: int, wait_s: float, reason: str
) -> None:
    """Signals the process groups of those that live, and waits for their end."""
    alive = [link for link in links if not link.dead]
    for link in alive:
        runtime.signal(link, number, reason)
    _await_deaths(alive, wait_s)


def _await_deaths(links: list[ActorLink], wait_s: float) -> None:
    if links:
        wait_for([ObjectRef(link.death_slot) for link in links], len(links), wait_s)
