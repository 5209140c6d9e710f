"""Counts the resources of a device that tasks and actors demand and hold, in exact numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Final

UNITS: Final = 10_000  # in one CPU, GPU or whatever: sums of fractions stay exact
CPU: Final = "CPU"
# A place for a task that wants less than one CPU: there are SLOTS_PER_CPU for each, so that tasks
# which want none cannot lead to any number of workers.
SLOT: Final = "a worker"
SLOTS_PER_CPU: Final = 4


class Demand:
    """A demand, one object for all equal ones, so that it is compared and hashed by identity."""

    __slots__ = ("actor", "cpu", "kept", "lent", "names", "units")

    def __init__(self, units: dict[str, int], actor: bool) -> None:
        self.actor = actor
        self.cpu = units.get(CPU, 0)
        if not actor and self.cpu < UNITS:
            units = {**units, SLOT: 1}
        self.units = tuple(units.items())
        self.names = frozenset(units)
        # What a task lends while it waits in get(), and what it keeps.
        self.lent = tuple(item for item in self.units if item[0] in (CPU, SLOT))
        self.kept = tuple(item for item in self.units if item[0] not in (CPU, SLOT))


class DeviceResources:
    """Holds the resources of one device.

    `free` goes below zero only for CPU (and places for small tasks), when a blocked task goes on,
    or runs a child of its own though an actor took the CPU it lent. `fixed` is what running
    tasks will not release: held by actors, or kept by blocked tasks. `for_life` is what actors
    have, though they may lend it. `lent_cpu` is what blocked tasks have lent.
    """

    __slots__ = ("cpus", "fixed", "for_life", "free", "lent_cpu", "total")

    def __init__(self, resources: Mapping[str, float]) -> None:
        self.total = to_units(resources)
        self.cpus = max(1, math.ceil(self.total.get(CPU, 0) / UNITS))
        self.total[SLOT] = SLOTS_PER_CPU * self.cpus
        self.free = dict(self.total)
        self.fixed = dict.fromkeys(self.total, 0)
        self.for_life = dict.fromkeys(self.total, 0)
        self.lent_cpu = 0

    def fits(self, demand: Demand) -> bool:
        free = self.free
        for name, units in demand.units:  # noqa: SIM110 (a generator costs three times as much)
            if free.get(name, 0) < units:
                return False
        return True

    def fits_but_for_cpu(self, demand: Demand) -> bool:
        return all(name == CPU or self.free.get(name, 0) >= units for name, units in demand.units)

    def fits_without_lent(self, demand: Demand) -> bool:
        return self.fits(demand) and self.free.get(CPU, 0) - self.lent_cpu >= demand.cpu

    def has_in_total(self, demand: Demand) -> bool:
        total = self.total
        for name, units in demand.units:  # noqa: SIM110
            if total.get(name, 0) < units:
                return False
        return True

    def will_come(self, demand: Demand) -> bool:
        """Tells whether a demand fits once the tasks that run now have ended."""
        total, fixed = self.total, self.fixed
        for name, units in demand.units:
            if total.get(name, 0) - fixed.get(name, 0) < units:
                return False
        # Its lender takes lent CPU back.
        return not (demand.actor and demand.cpu and self.lent_cpu) or (
            total.get(CPU, 0) - fixed.get(CPU, 0) - self.lent_cpu >= demand.cpu
        )

    def waits_for_actors(self, demand: Demand) -> bool:
        """Tells whether a demand will fit only once actors have ended."""
        total, for_life = self.total, self.for_life
        return not self.will_come(demand) and any(
            total.get(name, 0) - for_life.get(name, 0) < units for name, units in demand.units
        )

    def overdrawn(self, demand: Demand) -> bool:
        free = self.free
        for name, _ in demand.lent:  # noqa: SIM110
            if free.get(name, 0) < 0:
                return True
        return False

    def take(self, demand: Demand) -> None:
        free = self.free
        for name, units in demand.units:
            free[name] -= units

    def give(self, demand: Demand) -> None:
        free = self.free
        for name, units in demand.units:
            free[name] += units

    def take_for_life(self, demand: Demand) -> None:
        self.take(demand)
        for name, units in demand.units:
            self.fixed[name] += units
            self.for_life[name] += units

    def give_for_good(self, demand: Demand) -> None:
        self.give(demand)
        for name, units in demand.units:
            self.fixed[name] -= units
            self.for_life[name] -= units

    def lend(self, demand: Demand, sign: int = 1) -> None:
        """Lends a demand's CPUs while its holder waits in get(), or (`sign` -1) takes them back."""
        for name, units in demand.lent:
            self.free[name] += sign * units
            if demand.actor:
                self.fixed[name] -= sign * units
        if not demand.actor:
            for name, units in demand.kept:
                self.fixed[name] += sign * units
        self.lent_cpu += sign * demand.cpu


def to_units(amounts: Mapping[str, float]) -> dict[str, int]:
    """Returns amounts in units, without zeroes; the least amount above zero is one unit."""
    units: dict[str, int] = {}
    for name, amount in amounts.items():
        if not (isinstance(amount, Real) and amount >= 0 and math.isfinite(amount)):
            raise ValueError(
                f"resource {name}: {amount!r}; an amount is a number, zero or more. "
                f"Give one, or leave {name} out."
            )
        if amount:
            units[name] = max(1, round(amount * UNITS))
    return units


def to_amounts(units: Mapping[str, int]) -> dict[str, float]:
    """Returns units as amounts, without the slots for small tasks."""
    return {name: amount / UNITS for name, amount in units.items() if name != SLOT}
