"""Brings actors to an end, all of them at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gmi_drl.runtime.api.refs import ObjectRef, wait_for
from gmi_drl.runtime.wire.protocol import Kind

if TYPE_CHECKING:
    from .driver import Driver
    from .processes import Actor

_TERM_S: Final = 0.5  # between SIGTERM and SIGKILL
DEATH_S: Final = 5.0  # how long a process may take to die of SIGKILL


def stop_actors(
    driver: Driver,
    actors: list[Actor],
    grace: timedelta,
    reason: str,
    before_signals: Callable[[], None] | None = None,
) -> None:
    """Asks, waits for `grace`, then SIGTERM, then SIGKILL, each to the whole process group."""
    for actor in actors:
        driver.ask_actor(actor, Kind.CLOSE, reason)
    _await_deaths(actors, grace.total_seconds())
    if before_signals is not None and not all(actor.dead for actor in actors):
        before_signals()
    signal_actors(driver, actors, signal.SIGTERM, _TERM_S, reason)
    signal_actors(driver, actors, signal.SIGKILL, DEATH_S, reason)


def signal_actors(
    driver: Driver, actors: list[Actor], number: int, wait_s: float, reason: str
) -> None:
    """Signals the process groups of those that live, and waits for their end."""
    alive = [actor for actor in actors if not actor.dead]
    for actor in alive:
        driver.signal_actor(actor, number, reason)
    _await_deaths(alive, wait_s)


def _await_deaths(actors: list[Actor], wait_s: float) -> None:
    if actors:
        wait_for([ObjectRef(actor.death_slot) for actor in actors], len(actors), wait_s)
