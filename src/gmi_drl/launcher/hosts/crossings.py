"""Makes the links by which experience and policies travel from one host of a launch to another.

Where all hosts have trainers none is needed: each agent sends to the trainers of its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gmi_drl import runtime
from gmi_drl.comm.hosts.policies import PolicyReceiver, PolicySender
from gmi_drl.comm.shm.board import BoardSpec
from gmi_drl.comm.shm.tally import TallySpec
from gmi_drl.comm.transports import CrossHostLinks, LinkSpec, PeerInfo
from gmi_drl.launcher.plan.wiring import names_of
from gmi_drl.placement import Layout
from gmi_drl.placement.templates import TEMPLATES


@dataclass(frozen=True)
class Crossing:
    """A link from one host to another. `ends`: how errors call them."""

    ends: tuple[str, str]
    hosts: tuple[int, int]
    gmi_ids: tuple[int, int] | None  # of its ends; None: it carries policies


def crossings_of(layout: Layout) -> Iterator[Crossing]:
    """Yields the links between hosts that a layout needs.

    Experience goes from agents to trainers of other hosts where their own has none, and policies
    from the first host with trainers to each host without.
    """
    template, names = TEMPLATES[layout.template], names_of(layout)
    for source, target in template.channels(layout):
        gmi_ids = source.gmi_id, target.gmi_id
        hosts = layout.host_of(source.gmi_id), layout.host_of(target.gmi_id)
        if hosts[0] != hosts[1]:
            yield Crossing((names[source.gmi_id], names[target.gmi_id]), hosts, gmi_ids)
    if template.publishes_policy:
        training = [layout.host_of(gmi.gmi_id) for gmi in layout.holding("trainer")]
        for host in set(range(layout.hosts)) - {*training}:
            ends = f"the policies of host {training[0]}", f"host {host}"
            yield Crossing(ends, (training[0], host), None)


class Crossings:
    """The links between hosts that have an end on one of them."""

    experience: tuple[tuple[int, int, LinkSpec], ...] = ()  # gmi_id of the sender, of the receiver
    policies_out: tuple[LinkSpec, ...] = ()  # to each host without trainers
    policies_into: LinkSpec | None = None  # where this host is one of these

    def __init__(self, layout: Layout, host: int, address: str, directory: Path) -> None:
        """`address`: of this host; `directory`: the run's private folder there."""
        self._host = host
        self._crossings = [one for one in crossings_of(layout) if host in one.hosts]
        self._own = CrossHostLinks(address, directory) if self._crossings else None
        for crossing in self._crossings:
            if crossing.hosts[1] == host and self._own is not None:
                self._own.listen(*crossing.ends)

    @property
    def peer_info(self) -> PeerInfo | None:
        """Returns what other hosts need to know of this one; None where no link comes or goes."""
        return None if self._own is None else self._own.peer_info

    def connect(self, peers: Sequence[PeerInfo | None]) -> None:
        """Makes the links of what all hosts have said of their ends, by rank."""
        experience, policies_out = [], []
        for crossing in self._crossings:
            source, target = (peers[host] for host in crossing.hosts)
            assert self._own is not None
            assert source is not None
            assert target is not None
            sends = crossing.hosts[0] == self._host
            link = (
                self._own.sender(*crossing.ends, target)
                if sends
                else self._own.receiver(*crossing.ends, source)
            )
            if crossing.gmi_ids is not None:
                experience.append((*crossing.gmi_ids, link))
            elif sends:
                policies_out.append(link)
            else:
                self.policies_into = link
        self.experience, self.policies_out = tuple(experience), tuple(policies_out)


class PolicyRelays:
    """The actors that carry policies between the boards of hosts, where one has no trainers."""

    def __init__(
        self,
        crossings: Crossings,
        board: BoardSpec | None,
        tally: TallySpec,
        first_gmi: int,
        log: Path,
    ) -> None:
        """`first_gmi`: the first of this host, whose row counts strangers at the relay's port."""
        self._handles: list[runtime.ActorHandle] = []
        receiver, sender = (
            runtime.remote(actor).options(max_restarts=-1, num_threads=1, log=log)
            for actor in (PolicyReceiver, PolicySender)
        )
        if crossings.policies_into is not None:
            self._handles.append(receiver.remote(crossings.policies_into, board, tally, first_gmi))
        if crossings.policies_out:
            self._handles.append(sender.remote(board, crossings.policies_out))
        self._runs = [handle.run.remote() for handle in self._handles]

    def check(self) -> None:
        """Raises what has ended one of them, if that was an error; never waits."""
        if self._runs:
            ended, _ = runtime.wait(self._runs, num_returns=len(self._runs), timeout=0)
            runtime.get(ended)
