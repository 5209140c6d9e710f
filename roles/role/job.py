"""The facts that GMIs are told: their layout and config, their links, and where training pauses.

Nothing heavy is imported, as a launcher makes them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gmi_drl.placement import Config, Layout

if TYPE_CHECKING:
    from gmi_drl.comm import GroupSpec
    from gmi_drl.comm.shm.board import BoardSpec
    from gmi_drl.comm.shm.tally import TallySpec
    from gmi_drl.comm.transports import LinkSpec

    from .role import DRL_role

HEIR: Final = 2  # of the counter "bereft"


@dataclass(frozen=True)
class Wires:
    """The links for experience and the board for policies that join a GMI with others.

    The launcher makes them before any process is started. None where a GMI has all roles.
    """

    links: tuple[tuple[int, int, LinkSpec], ...] = ()  # gmi_id of the sender, of the receiver
    board: BoardSpec | None = None  # agents read policies there; the first trainer here writes

    def of(self, gmi_id: int) -> Wires:
        """Returns the wires of one GMI, as a call carries 253 descriptors at most."""
        links = tuple(link for link in self.links if gmi_id in link[:2])
        return Wires(links, self.board)

    def out_of(self, gmi_id: int) -> dict[int, LinkSpec]:
        """Returns the links that a GMI sends by, by the receiver's gmi_id."""
        return {target: link for source, target, link in self.links if source == gmi_id}

    def into(self, gmi_id: int) -> dict[int, LinkSpec]:
        """Returns the links that a GMI receives by, by the sender's gmi_id."""
        return {source: link for source, target, link in self.links if target == gmi_id}


@dataclass(frozen=True)
class Pause:
    """The part of a training that ends at `steps`, or a little above, always with a checkpoint.

    `learning_rate` is that to go on with, instead of the checkpoint's, if it is resumed. `copy`: 0;
    or the number of this part, where the checkpoint is of another training, which goes on as well:
    this one draws numbers of its own.
    """

    steps: int
    learning_rate: float | None
    copy: int = 0


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts of a run that are the same on all of its hosts."""

    layout: Layout
    config: Config
    folder: Path | None  # the run's folder
    resume: Path | None  # the checkpoint, or the run's folder, to continue from
    classes: dict[str, type[DRL_role] | str]  # or module:Class, by the last role of a GMI
    role_folder: Path | None  # where modules that it names lie: beside the config file
    session: str  # names this launch among those of the folder
    epoch: int = 0  # on several hosts: counts the run's gangs. One of a lower epoch writes no more


@dataclass(frozen=True, kw_only=True)
class Job(RunFacts):
    """The facts that all GMIs on a host are told; each is told of its own wires only."""

    group: GroupSpec | None  # of the GMIs that train, by their ids; None when nothing is trained
    sockets: Path  # the run's private folder for ipc sockets
    tally: TallySpec  # what GMIs have done, kept over their deaths
    wires: Wires  # as given to a GMI: its own
    traced: bool = False  # whether the GMI that is told so records a trace
    lock: Path | None = None  # a file whose lock all of them hold: who has it trains this run
    pause: Pause | None = None  # where training ends before run.total_steps, to be gone on with
    plan: str = ""  # plan.json; none of a run that does not train

    @property
    def run(self) -> RunFacts:
        """Returns what other hosts may be told."""
        return RunFacts(**{field.name: getattr(self, field.name) for field in fields(RunFacts)})

    def of_gmi(self, gmi_id: int, traced: Collection[int] = ()) -> Job:
        """Returns the job as one GMI is told it; `traced` has the ids of those with traces."""
        return replace(self, wires=self.wires.of(gmi_id), traced=gmi_id in traced)

    def class_of(self, gmi_id: int) -> type[DRL_role] | str:
        """Returns the class that runs a GMI."""
        return self.classes[self.layout.gmi(gmi_id).roles[-1]]

    def rank_of(self, gmi_id: int) -> int | None:
        """Returns the rank of a GMI in the group of its host, or None."""
        host = self.layout.host_of(gmi_id)
        trainers = [
            gmi.gmi_id
            for gmi in self.layout.holding("trainer")
            if self.layout.host_of(gmi.gmi_id) == host
        ]
        return trainers.index(gmi_id) if self.group is not None and gmi_id in trainers else None
