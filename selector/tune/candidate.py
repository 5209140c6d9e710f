"""Defines what tuning can try, what it asks for and what comes back, and names these for people."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gmi_drl.placement import counted

# Why a candidate could not be measured: memory ran out; a process died or raised; nothing came for
# too long; it was refused before anything started; it takes longer than the time asked for.
Reason: TypeAlias = Literal["memory", "crash", "hang", "refused", "slow"]


@dataclass(frozen=True, order=True)
class DeviceSplit:
    """Says how a device is cut, and what follows: a row's candidates differ in `num_env` alone."""

    gmi_per_gpu: int
    backend: str
    sm_overcommit: float = 1.0  # backend mps: the shares add up to so many times the SMs
    percents: tuple[int, ...] | None = None  # sm_percent of the GMIs of a device; None: alike
    grown: bool = False  # the horizon stays and updates grow, where tune.keep would keep them


@dataclass(frozen=True, order=True)
class Candidate:
    """Holds one setting to try: what differs from the user's config."""

    row: DeviceSplit
    num_env: int  # of each GMI that simulates
    horizon: int
    samples: int  # environment steps between two updates, of all GMIs of all devices
    changes: tuple[tuple[str, int | float], ...] = ()  # other keys of `algorithm`, by `tune.keep`


@dataclass(frozen=True)
class Space:
    """Holds all candidates: rows, each by rising `num_env`. The first row has the fewest GMIs."""

    rows: tuple[tuple[Candidate, ...], ...]

    @property
    def size(self) -> int:
        """Counts the candidates that an exhaustive search measures."""
        return sum(map(len, self.rows))

    @property
    def splits(self) -> list[DeviceSplit]:
        """Lists how each row splits a device."""
        return [row[0].row for row in self.rows]


@dataclass(frozen=True)
class Ask:
    """Asks to measure a candidate for `seconds` of training at most, less when that is enough."""

    candidate: Candidate
    seconds: float


@dataclass(frozen=True)
class Measured:
    """Holds what a candidate does while all its GMIs run together."""

    steps_per_s: float  # environment steps, of all GMIs of all devices
    error: float  # relative standard error of steps_per_s
    iterations: int  # that were measured
    seconds: float  # that they took; without start, warm-up and end
    phases: Mapping[str, float]  # share of the time, mean over GMIs; they add up to 1
    host_bytes: int  # of all GMIs together, at most, what they share counted once
    device_bytes: int | None  # of the fullest device, at most; None on groups of cores
    memory: float  # the fullest memory, host's or device's: used / what these GMIs may have
    cores: float  # that were busy, mean
    sm_activity: float | None = None  # 0 to 1, where NVML tells


@dataclass(frozen=True)
class Failed:
    """Says why a candidate could not be measured."""

    reason: Reason
    text: str  # which limit, and what it said: one line, for people


# None: the budget is used up, and the search returns what it knows.
Answer: TypeAlias = Measured | Failed | None


@dataclass(frozen=True)
class Skipped:
    """Holds a candidate that was not measured, and why."""

    candidate: Candidate
    why: str  # "memory would be 132 % full", "row 4 is saturated from 2,048 on"


@dataclass(frozen=True)
class Chosen:
    """Holds what a search chose. `winner` is None when nothing could be measured."""

    winner: Candidate | None
    runner_up: Candidate | None  # the best that is not the winner
    skipped: tuple[Skipped, ...]
    complete: bool  # False: the budget ended it
    why: str = ""  # how the winner was told from the others, in a sentence


# A search: it has its asks answered, one after the other, and returns what it chose; called once.
Measure: TypeAlias = Callable[[Ask], Answer]
TuneSearch: TypeAlias = Callable[[Measure], Chosen]


def candidate_text(candidate: Candidate, rows: Collection[DeviceSplit]) -> str:
    """Returns a candidate in words."""
    return f"{row_text(candidate.row, rows)}, num_env {candidate.num_env:,}"


def row_text(row: DeviceSplit, rows: Collection[DeviceSplit]) -> str:
    """Returns a row in words: the number of GMIs, and what tells it from `rows` with as many."""
    return ", ".join([counted(row.gmi_per_gpu, "GMI"), *row_marks(row, rows)])


def row_marks(row: DeviceSplit, rows: Collection[DeviceSplit]) -> list[str]:
    """Lists what tells a row from those of `rows` with as many GMIs."""
    parts = []
    if len({other.backend for other in rows if other.gmi_per_gpu == row.gmi_per_gpu}) > 1:
        parts.append(row.backend)
    if row.percents is not None:
        parts.append(f"{':'.join(map(str, row.percents))} % of SMs")
    if row.sm_overcommit != 1.0:
        parts.append(f"SMs {row.sm_overcommit:g}x")
    if row.grown:
        parts.append("larger updates")
    return parts


def shape_text(candidate: Candidate) -> str:
    """Returns a candidate on its own: num_env 512, 2 GMIs on each device, backend mps."""
    row = candidate.row
    gmis = counted(row.gmi_per_gpu, "GMI")
    parts = [f"num_env {candidate.num_env:,}", f"{gmis} on each device"]
    if row.backend != "cpu":
        parts.append(f"backend {row.backend}")
    if row.percents is not None:
        parts.append(f"{':'.join(map(str, row.percents))} % of the SMs")
    elif row.sm_overcommit != 1.0:
        parts.append(f"sm_overcommit {row.sm_overcommit:g}")
    return ", ".join(parts)
