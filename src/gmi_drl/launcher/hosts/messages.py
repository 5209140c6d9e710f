"""Defines what the driver of a launch and the launchers on its hosts tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.errors import GmiDrlError

if TYPE_CHECKING:
    from gmi_drl.comm.hosts import Endpoint, GroupOutcome, Roster
    from gmi_drl.comm.transports import PeerInfo
    from gmi_drl.gmi.usage.processes import HostMemory
    from gmi_drl.placement import Topology
    from gmi_drl.roles.role.job import RunFacts

BEAT_S: Final = 0.25  # between two talks of the driver with a host
SILENCE_S: Final = 10.0  # without a word of the driver a host ends its GMIs; and the other way


class HostsError(GmiDrlError, RuntimeError):
    """Says why hosts cannot train together, or no longer do."""


class HostLost(HostsError):
    """Hosts of a run that trains are gone, or do not answer: those of `ranks`."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostFacts:
    """Holds what a host says of itself before it is told what to run."""

    address: str
    name: str
    node_id: str
    versions: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.address} ({self.name})"


@dataclass(frozen=True)
class HostPart:
    """Holds what the launcher on a host needs to run its GMIs."""

    host: int
    addresses: tuple[str, ...]  # of all hosts, by their rank
    run: RunFacts
    folder: Path  # the run's; all hosts see the same one
    started: float  # of run.json there, by which a host knows that it is the same one
    max_restarts: int
    traced: frozenset[int]
    keeps_gcs: bool  # what the host records shall be in the run's folder
    digests: Mapping[str, str] = field(default_factory=dict)  # of the user's files in role_folder


@dataclass(frozen=True)
class Orders:
    """Holds what the driver tells a host; that it comes is a sign of life."""

    calls: tuple[str, ...] = ()  # methods of GMIs to call, one after the other
    stop: bool = False  # GMIs shall come to an end
    end: bool = False  # the gang shall be stopped, and the launcher end
    # A host is lost: GMIs shall leave, and this one save the state before, or NOBODY as yet.
    heir: int | None = None
    roster: Roster | None = None
    outcome: GroupOutcome | None = None  # a GMI has finished, on whatever host
    rows: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # of other hosts' GMIs
    peers: tuple[PeerInfo | None, ...] = ()  # of all hosts, by rank, once all have told


@dataclass
class Report:
    """Holds what has come up on a host since it told the driver last.

    Records, restarts, results and the error may be of the user's classes, which the agent on the
    way does not know: it hands reports on as it gets them, as bytes.
    """

    topology: Topology | None = None  # its devices, once they have been looked at
    memory: HostMemory | None = None  # of the host, by then
    records: list[tuple[int, Any]] = field(default_factory=list)
    restarts: list[tuple[int, Any]] = field(default_factory=list)
    rows: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    results: list[dict[int, Any]] = field(default_factory=list)  # of calls, in their order
    endpoint: Endpoint | None = None
    peer_info: PeerInfo | None = None  # of a host with links to others
    outcome: GroupOutcome | None = None  # a GMI of this host has finished
    error: BaseException | None = None  # that ended the launcher there
    ended: str = ""  # how its process ended
