"""Says what the GMIs of a host need so that they reduce with those of other hosts.

Each host has one leader, rank 0 of its own group, which alone speaks to the leaders of the others.
They find each other through files in a private folder of each host:

    endpoint.json   written by the leader: where it listens, and its public key. Its secret key
                    never leaves its process. Whoever runs the cluster reads it and hands it round.
    roster.json     written for the leader: the endpoints of all hosts, under an epoch.
    outcome.json    written by a GMI that has finished, and for those of other hosts: one that comes
                    back after that would meet nobody any more.

There is one maker of rosters, the driver of the cluster. Whenever an endpoint changes (a GMI was
restarted, a host came back) or a host is lost, it makes one with a higher epoch: every GMI of
every host raises GroupReformed then, and all meet again in that epoch. A lower epoch is refused,
so that a host that was cut off and knows nothing of it cannot disturb the others.

Nothing here imports torch, as the launcher must not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from gmi_drl.comm.errors import CommError
from gmi_drl.runtime.cache_files import replace_file

DEFAULT_WAIT: Final = timedelta(seconds=600)
_ENDPOINT: Final = "endpoint.json"
_ROSTER: Final = "roster.json"
_OUTCOME: Final = "outcome.json"


@dataclass(frozen=True)
class HostSpec:
    """One host among several whose GMIs reduce together; it stays the same for a whole launch."""

    rank: int  # of this host, from 0
    members: tuple[tuple[str, ...], ...]  # of each host, by rank there, as errors shall name them
    address: str  # of this host: its leader listens there alone, at a port that is free
    folder: Path  # private (mode 0700), on this host, and of this launch alone
    wait: timedelta = DEFAULT_WAIT  # for all hosts to meet, at first and when one was lost
    trusted: bool = False  # the network: large sums travel by gloo, without encryption
    interface: str = ""  # for gloo; else that of the address
    measures: bool = False  # how long each way between hosts takes, to choose by; else the usual

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.members):
            raise ValueError(f"host {self.rank}: there are hosts 0 to {len(self.members) - 1}.")
        if not all(self.members):
            empty = [rank for rank, names in enumerate(self.members) if not names]
            raise ValueError(f"hosts {empty} have no GMI that trains: leave them out.")

    @property
    def first(self) -> int:
        """Returns the rank of this host's leader among the GMIs of all hosts."""
        return sum(len(names) for names in self.members[: self.rank])


@dataclass(frozen=True)
class Endpoint:
    """Where a leader listens. Everything in it is public."""

    serial: int  # counts the endpoints of its host, over all processes that led it in a launch
    address: str
    port: int
    key: str  # its public CURVE key, Z85


@dataclass(frozen=True)
class Roster:
    """The endpoints of all hosts, by host rank, in one epoch; None for a host that is away."""

    epoch: int
    endpoints: tuple[Endpoint | None, ...]

    @property
    def missing(self) -> list[int]:
        """Returns the ranks of the hosts that are away."""
        return [rank for rank, endpoint in enumerate(self.endpoints) if endpoint is None]

    def to_json(self) -> str:
        """Returns it as text, for the way between hosts."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuilds it from its text; ValueError if that is not one."""
        try:
            raw = json.loads(text)
            ends = tuple(None if end is None else Endpoint(**end) for end in raw["endpoints"])
            return cls(int(raw["epoch"]), ends)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"this is no roster: {text[:80]!r} ({error}). Make a new one."
            ) from None


@dataclass(frozen=True)
class GroupOutcome:
    """Says what came of a group's work, once one of its GMIs has finished it."""

    rank: int  # among the GMIs of all hosts
    text: str


def next_roster(last: Roster | None, endpoints: Sequence[Endpoint | None]) -> Roster | None:
    """Returns the roster to hand to every host, or None while that of before still holds."""
    if last is None:
        return Roster(1, tuple(endpoints))
    return None if last.endpoints == tuple(endpoints) else Roster(last.epoch + 1, tuple(endpoints))


def read_endpoint(folder: Path) -> Endpoint | None:
    """Returns where the leader of a host listens; None while it has not said so."""
    try:
        return Endpoint(**json.loads((folder / _ENDPOINT).read_text()))
    except FileNotFoundError:
        return None


def write_endpoint(folder: Path, endpoint: Endpoint) -> None:
    """Says where this leader listens."""
    replace_file(folder / _ENDPOINT, json.dumps(dataclasses.asdict(endpoint)))


def read_roster(folder: Path) -> Roster | None:
    """Returns the roster that was handed to this host; None while there is none."""
    try:
        return Roster.from_json((folder / _ROSTER).read_text())
    except FileNotFoundError:
        return None


def write_roster(folder: Path, roster: Roster) -> None:
    """Hands a roster to the leader of a host; CommError unless its epoch is above the last."""
    current = read_roster(folder)
    if current is not None and current.epoch >= roster.epoch and current != roster:
        raise CommError(
            f"a roster of epoch {roster.epoch} for a host that has one of epoch {current.epoch}: "
            "epochs only rise. It is from a driver that was replaced; stop that one."
        )
    replace_file(folder / _ROSTER, roster.to_json())


def read_outcome(folder: Path) -> GroupOutcome | None:
    """Returns what came of the group's work; None while nobody is known to have finished it."""
    try:
        return GroupOutcome(**json.loads((folder / _OUTCOME).read_text()))
    except FileNotFoundError:
        return None


def write_outcome(folder: Path, outcome: GroupOutcome) -> None:
    """Says that a GMI has finished, here or on another host."""
    replace_file(folder / _OUTCOME, json.dumps(dataclasses.asdict(outcome)))
