"""What can be tried, what is asked for, and what comes back: the words of every search."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

# Why a candidate could not be measured: memory ran out; a process died or raised; nothing came for
# too long; it was refused before anything started; it takes longer than the time asked for.
Reason: TypeAlias = Literal["memory", "crash", "hang", "refused", "slow"]
REASONS: Final[tuple[Reason, ...]] = ("memory", "crash", "hang", "refused", "slow")


@dataclass(frozen=True, order=True)
class Row:
    """How a device is cut: the candidates of a row differ in `num_env` alone."""

    gmi_per_gpu: int
    backend: str
    sm_overcommit: float = 1.0  # backend mps: the shares add up to so many times the SMs
    percents: tuple[int, ...] | None = None  # sm_percent of the GMIs of a device; None: alike


@dataclass(frozen=True, order=True)
class Candidate:
    """One setting to try: what it has other than the user's config."""

    row: Row
    num_env: int  # of each GMI that simulates
    horizon: int
    samples: int  # environment steps between two updates, of all GMIs of all devices


@dataclass(frozen=True)
class Space:
    """All candidates: rows, each by rising `num_env`. The first row has the fewest GMIs."""

    rows: tuple[tuple[Candidate, ...], ...]

    def __post_init__(self) -> None:
        for its in self.rows:
            assert its, "a row without candidates"
            assert len({candidate.row for candidate in its}) == 1, its
            assert [c.num_env for c in its] == sorted({c.num_env for c in its}), its

    @property
    def size(self) -> int:
        """How many candidates an exhaustive search measures."""
        return sum(map(len, self.rows))


@dataclass(frozen=True)
class Ask:
    """Measure this candidate for `seconds` of training at most, less when that is enough."""

    candidate: Candidate
    seconds: float


@dataclass(frozen=True)
class Measured:
    """What a candidate does while all its GMIs run together."""

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
    """Why a candidate could not be measured."""

    reason: Reason
    text: str  # which limit, and what it said: one line, for people


@dataclass(frozen=True)
class Spent:
    """The budget is used up: the search returns what it knows."""


Answer: TypeAlias = Measured | Failed | Spent


@dataclass(frozen=True)
class Skipped:
    """A candidate that was not measured, and why."""

    candidate: Candidate
    why: str  # "memory would be 132 % full", "row 4 is saturated from 2,048 on"


@dataclass(frozen=True)
class Chosen:
    """What a search found. `winner` is None when nothing could be measured."""

    winner: Candidate | None
    runner_up: Candidate | None  # the best that is not the winner
    skipped: tuple[Skipped, ...]
    complete: bool  # False: the budget ended it
    why: str = ""  # how the winner was told from the others, in a sentence


# A search asks, is told by `send`, and returns. It is pure: the same answers make the same asks, so
# that one that was killed goes on from the answers on record.
Search: TypeAlias = Generator[Ask, Answer, Chosen]
