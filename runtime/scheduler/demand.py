"""What a task or an actor wants of a device, in exact numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

UNITS: Final = 10_000  # in one CPU, GPU or whatever: sums of fractions stay exact
CPU: Final = "CPU"
# A place for a task that wants less than one CPU: there are SLOTS_PER_CPU for each, so that tasks
# which want none cannot lead to any number of workers.
SLOT: Final = "a worker"
SLOTS_PER_CPU: Final = 4


class Demand:
    """A demand all askers of which share one object: compared, and looked up, by identity."""

    __slots__ = ("actor", "cpu", "kept", "lent", "names", "units")

    def __init__(self, units: dict[str, int], actor: bool) -> None:
        self.actor = actor
        self.cpu = units.get(CPU, 0)
        if not actor and self.cpu < UNITS:
            units = {**units, SLOT: 1}
        self.units = tuple(units.items())
        self.names = frozenset(units)
        # What a task that waits in get() gives back for that time, and what it keeps.
        self.lent = tuple(item for item in self.units if item[0] in (CPU, SLOT))
        self.kept = tuple(item for item in self.units if item[0] not in (CPU, SLOT))


class Demands:
    """Finds the one object for a demand."""

    __slots__ = ("_asked", "_known")

    def __init__(self) -> None:
        self._asked: dict[tuple[object, ...], Demand] = {}  # as it was written
        self._known: dict[tuple[object, ...], Demand] = {}  # in units

    def of(self, wants: Mapping[str, float], actor: bool = False) -> Demand:
        key = (actor, *wants.items())
        demand = self._asked.get(key)
        if demand is None:
            units = to_units(wants)
            known = (actor, *sorted(units.items()))
            demand = self._known.setdefault(known, Demand(units, actor))
            self._asked[key] = demand
        return demand


def to_units(amounts: Mapping[str, float]) -> dict[str, int]:
    """Zeroes are left out; the least amount above zero is one unit."""
    units: dict[str, int] = {}
    for name, amount in amounts.items():
        if not (amount >= 0 and math.isfinite(amount)):
            raise ValueError(
                f"resource {name}: {amount!r}; an amount is a number, zero or more. "
                f"Give one, or leave {name} out."
            )
        if amount:
            units[name] = max(1, round(amount * UNITS))
    return units


def to_amounts(units: Mapping[str, int]) -> dict[str, float]:
    """The same for people; places for small tasks are no resource of theirs."""
    return {name: amount / UNITS for name, amount in units.items() if name != SLOT}
