"""Joins the cluster of a config, and starts an agent on each host of a launch."""

from __future__ import annotations

import ipaddress
import os
import pickle
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from gmi_drl.gmi.usage.processes import HostMemory
from gmi_drl.placement import Config, Topology, counted
from gmi_drl.runtime import ActorRuntimeError

from .agent import NodeAgent, node_and_versions, own_versions
from .drains import Drains
from .head import RayHead
from .messages import BEAT_S, SILENCE_S, HostFacts, HostLost, HostsError, Orders
from .placement_group import Bundle, bundles_of, placement_group
from .presence import Presence

_ANSWER_S: Final = 60.0  # for an agent to start, and for its launcher to look at the devices
_BACK_S: Final = 20.0  # for an agent of a host that may be there again
_MOST_BACK: Final = 3  # times that a host is taken in again
_END_S: Final = 30.0
_LOOK_S: Final = 1.0  # between two looks at the head
_SETTLE_S: Final = 5.0  # for agents that have just been started to end


class _HostUnfit(HostsError):
    """Hosts cannot train, or do not answer: those at `places`."""

    places: frozenset[int] = frozenset()

    @classmethod
    def at(cls, places: Collection[int], text: str = "", **fields: str) -> Self:
        """Makes the error of hosts at these places."""
        error = cls(text) if text else cls(**fields)
        error.places = frozenset(places)
        return error


@dataclass(frozen=True)
class Host:
    """A host of the launch: its agent, and what it says of itself."""

    agent: Any  # Ray's handle
    facts: HostFacts
    topology: Topology
    memory: HostMemory
    place: int  # of its bundle in the placement group

    @property
    def resources(self) -> tuple[Topology, HostMemory]:
        """Returns what it has for GMIs."""
        return self.topology, self.memory

    def __str__(self) -> str:
        return str(self.facts)


class Cluster:
    """The hosts of a launch, by their rank, and what is set aside for it."""

    def __init__(
        self, config: Config, head: RayHead, drains: Drains, group: Any, bundles: Sequence[Bundle]
    ) -> None:
        """`bundles`: what is set aside in `group` on each host, by place."""
        assert config.cluster is not None
        self._config, self._cluster, self.head = config, config.cluster, head
        self._drains = drains
        self._drained: set[str] = set()  # nodes that are drained, as `newly_drained` has said
        self._group, self._bundles = group, bundles
        self._agents: dict[int, Any] = {}  # by the place of their bundle
        self.hosts: list[Host] = []
        self._asked: dict[int, Any] = {}  # probes that wait for an answer, by place of a lost host
        self._ask_s = 0.0  # when they are asked next
        self._times_back = [0] * self._cluster.hosts  # by place
        self._untried: Collection[int] = ()  # places of hosts that are back and have not trained
        self._presence: Presence | None = None  # until others talk with the agents

    def start(self, places: Sequence[int], within_s: float = _ANSWER_S) -> None:
        """Starts an agent at each of these places; _HostUnfit if one does not answer in time."""
        import ray

        actor = ray.remote(NodeAgent)
        options = {"max_restarts": 0, "max_concurrency": 4}
        self._agents = self.head.ask(
            lambda: {
                place: actor.options(**options, **self._at(place)).remote(
                    "GPU" in self._bundles[place]
                )
                for place in places
            }
        )
        self._presence = Presence(self._agents.values())  # one may be there long before another
        try:
            hosts = _describe(self._agents, self._config, self.head, self._drains, within_s)
        except _HostUnfit:
            _check_own_node(self.head)
            raise
        # Those with GPUs first: where some hosts train for the others, it is they.
        self.hosts = sorted(hosts, key=lambda host: -self._bundles[host.place].get("GPU", 0))

    def hand_over(self) -> list[Host]:
        """Returns the hosts to a caller that talks with their agents from now on."""
        if self._presence is not None:
            self._presence.end()
            self._presence = None
        return self.hosts

    def renew(self, lost: Collection[int] = (), back: Collection[int] = ()) -> None:
        """Starts all agents anew: without hosts of these ranks, or when there are as many again.

        `back`: places of hosts that are there again, as `places_back` has told.
        """
        import ray

        self.head.await_answer()
        self._untried = back
        places = [host.place for host in self.hosts]
        for rank in lost:
            ray.kill(self._agents.pop(places[rank]))  # it may not answer
        self.end()
        if self._cluster.on_loss == "shrink":
            left = [place for rank, place in enumerate(places) if rank not in lost]
            if not left:  # as when this program was suspended: some hosts may still run
                back = [place for place in places if self._times_back[place] < _MOST_BACK]
            for place in back:
                self._times_back[place] += 1
            self._start_reachable([*left, *back])
        else:
            self._start_all(places)

    def _start_reachable(self, places: Sequence[int]) -> None:
        """Starts agents at these places, but for hosts that turn out to be lost as well."""
        reason = ""
        while len(places) >= self._cluster.hosts_min:
            try:
                self.start(places)
            except _HostUnfit as error:
                self.end(_SETTLE_S)
                places = [place for place in places if place not in error.places]
                reason = f" ({error})"
                continue
            self._ask_s = time.monotonic() + SILENCE_S  # by then what a lost one ran has ended
            return
        _check_own_node(self.head)
        raise HostLost(
            value=f"cluster.hosts_min={self._cluster.hosts_min}",
            rule=f"{counted(len(places), 'host')} would be left{reason}",
            remedy="Go on from the last checkpoint when there are more.",
        )

    def _start_all(self, places: Sequence[int]) -> None:
        """Starts agents at all of these places, as soon as there are hosts for them."""
        deadline_s = time.monotonic() + self._cluster.wait_s
        while True:
            try:
                self.start(places, _BACK_S)
                return
            except _HostUnfit as error:
                self.end(_SETTLE_S)
                if time.monotonic() > deadline_s:
                    raise HostLost(
                        value=f"cluster.hosts={self._cluster.hosts}",
                        rule=f"after {self._cluster.wait_s:g} s there are not as many ({error})",
                        remedy="Go on from the last checkpoint when there are.",
                    ) from error
            time.sleep(1.0)  # for the cluster to find out who is there

    @property
    def untried(self) -> tuple[int, ...]:
        """Returns the ranks of hosts that are there again and have not trained since."""
        return tuple(rank for rank, host in enumerate(self.hosts) if host.place in self._untried)

    def is_trained_on(self) -> None:
        """Notes that GMIs train on all hosts."""
        self._untried = ()

    def places_back(self) -> list[int]:
        """Returns the places of lost hosts that answer again; asks them, and waits for none.

        A probe of a place is answered when Ray has put a host there.
        """
        import ray

        used = {host.place for host in self.hosts}
        lost = {place for place, times in enumerate(self._times_back) if times < _MOST_BACK} - used
        if self._cluster.on_loss != "shrink" or not lost or time.monotonic() < self._ask_s:
            return []
        for place in lost - self._asked.keys():
            probe = ray.remote(node_and_versions).options(max_retries=0, **self._at(place))
            self._asked[place] = self.head.ask(probe.remote)
        ready, _ = ray.wait([*self._asked.values()], num_returns=len(self._asked), timeout=0)
        back = []
        for place, reference in [*self._asked.items()]:
            if reference in ready:
                del self._asked[place]
                with suppress(ray.exceptions.RayError):  # it is asked again
                    node, versions = ray.get(reference)
                    if versions == own_versions() and node not in self._drains.nodes:
                        back.append(place)
        self._ask_s = time.monotonic() + BEAT_S * 4
        return back

    def newly_drained(self) -> list[int]:
        """Returns the ranks of hosts that Ray drains, unless all of them were returned before."""
        drained = {
            host.facts.node_id: rank
            for rank, host in enumerate(self.hosts)
            if host.facts.node_id in self._drains.nodes
        }
        if self._drained.issuperset(drained):
            return []
        self._drained |= drained.keys()
        return [*drained.values()]

    def can_do_without(self, ranks: Collection[int]) -> bool:
        """Tells whether the run goes on when these hosts leave it."""
        left = len(self.hosts) - len(ranks)
        return self._cluster.on_loss == "wait" or (
            self._cluster.on_loss == "shrink" and left >= self._cluster.hosts_min
        )

    def _at(self, place: int) -> dict[str, Any]:
        """Returns Ray's options for what is run on the host at this place."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": self._bundles[place]["CPU"],
            "num_gpus": self._bundles[place].get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=place
            ),
        }

    def end(self, within_s: float = _END_S) -> None:
        """Ends the agents; returns when the launchers of those in reach are gone.

        Without a head Ray would wait for it until it ends this program: then nothing is done, and
        agents end by themselves, as nobody talks with them any more.
        """
        import ray

        self.hand_over()
        agents, self._agents = [*self._agents.values()], {}
        if not agents or not self.head.answers():
            return
        with suppress(Exception):  # a cluster that is gone
            ended = [agent.end.remote() for agent in agents]
            ray.wait(ended, num_returns=len(ended), timeout=within_s)
            for agent in agents:
                ray.kill(agent)


@contextmanager
def joined(config: Config) -> Iterator[Cluster]:
    """Yields the hosts that the config asks for; they are given back at the end.

    HostsError says what is missing, at the latest after `cluster.wait_s`.
    """
    cluster = config.cluster
    assert cluster is not None
    try:
        from ray.util.placement_group import remove_placement_group

        from gmi_drl.runtime.engines.ray import nodes
    except ImportError as error:
        raise HostsError(
            value=f"cluster.address={cluster.address}",
            rule=f"Ray cannot be imported ({error})",
            remedy="pip install 'gmi-drl[ray]'.",
        ) from error
    if not cluster.trusted and os.environ.get("RAY_AUTH_MODE") != "token":
        raise HostsError(
            value=f"cluster.address={cluster.address}",
            rule="a Ray cluster without token authentication runs the code of whoever reaches its "
            "port",
            remedy="Start it and this program with RAY_AUTH_MODE=token and a token "
            "(RAY_AUTH_TOKEN_PATH), or set cluster.trusted: true where only you reach it.",
        )
    try:
        nodes.join(cluster.address, trusted=True)
    except (ConnectionError, ActorRuntimeError) as error:
        nodes.leave()
        raise HostsError(
            value=f"cluster.address={cluster.address}",
            rule=f"this cluster cannot be joined ({error})",
            remedy="See that it runs and has the token that this program has, and give the "
            "address that `ray start --head` has printed.",
        ) from error
    try:
        head = RayHead(cluster.address)
        bundles = bundles_of(config, head.ask(nodes.hosts))
        group, drains = placement_group(cluster, head, bundles), Drains(cluster.address)
        hosts = Cluster(config, head, drains, group, bundles)
        try:
            hosts.start(range(cluster.hosts))
            yield hosts
        finally:
            drains.close()
            hosts.end()
            if head.answers():  # else it waits, too
                with suppress(Exception):
                    remove_placement_group(group)
    finally:
        nodes.leave()


def _check_own_node(head: RayHead) -> None:
    """HostLost if the raylet that this program is joined to is gone: it would start nothing."""
    import ray

    from gmi_drl.runtime.engines.ray import nodes

    node_id = ray.get_runtime_context().get_node_id()
    if node_id not in [node["NodeID"] for node in head.ask(nodes.hosts)]:
        raise HostLost(
            value="the host of this program",
            rule="the cluster has lost it, and starts nothing for it any more",
            remedy="Join it again (`ray start --address=...`), and go on from the last checkpoint.",
        )


def _describe(
    by_place: Mapping[int, Any], config: Config, head: RayHead, drains: Drains, within_s: float
) -> list[Host]:
    """Asks all agents for their hosts; returns these sorted by address."""
    import cloudpickle  # type: ignore[import-untyped]

    requests = {place: agent.facts.remote() for place, agent in by_place.items()}
    facts: dict[int, HostFacts] = _answers(requests, head, "start", within_s)
    ranked = sorted(facts, key=lambda place: _address(facts[place]))
    local_versions = own_versions()
    for place in ranked:
        host = facts[place]
        if host.node_id in drains.nodes:
            raise _HostUnfit.at(
                [place],
                value=f"host {host}",
                rule="Ray drains it: it is taken away soon",
                remedy="Wait until another one is in its place.",
            )
        for name, version in local_versions.items():
            if host.versions[name] != version:
                raise _HostUnfit.at(
                    [place],
                    value=f"host {host}",
                    rule=f"it has {name} {host.versions[name]}, and this program {version}",
                    remedy="Install the same on all hosts.",
                )
        _check_clock(host, place, by_place[place], head)
    config_bytes = cloudpickle.dumps(config)
    requests = {place: agent.tell.remote(config_bytes) for place, agent in by_place.items()}
    _answers(requests, head, "be told the config")
    surveys = _surveys(by_place, facts, head)
    return [Host(by_place[place], facts[place], *surveys[place], place) for place in ranked]


def _check_clock(facts: HostFacts, place: int, agent: Any, head: RayHead) -> None:
    """HostsError if a host's clock and that of this program are too far apart."""
    asked_s = time.time()
    host_s = _answers({place: agent.clock.remote()}, head, "tell the time")[place]
    ahead_s, behind_s = host_s - time.time(), asked_s - host_s  # at least, as answers take time
    if max(ahead_s, behind_s) > SILENCE_S:
        raise _HostUnfit.at(
            [place],
            value=f"host {facts}",
            rule=f"its clock is {max(ahead_s, behind_s):.0f} s "
            f"{'ahead of' if ahead_s > 0 else 'behind'} that of this program; {SILENCE_S:g} s are "
            "let pass",
            remedy="Set both by NTP (`timedatectl` says on each whether it is).",
        )


def _address(facts: HostFacts) -> tuple[Any, ...]:
    try:
        address = ipaddress.ip_address(facts.address)
    except ValueError:
        return 9, facts.address, facts.node_id
    return address.version, int(address), facts.node_id


def _surveys(
    agents: Mapping[int, Any], facts: Mapping[int, HostFacts], head: RayHead
) -> dict[int, tuple[Topology, HostMemory]]:
    """Returns the devices and memory of all hosts, once their launchers have looked at them."""
    surveys: dict[int, tuple[Topology, HostMemory]] = {}
    deadline_s = time.monotonic() + _ANSWER_S
    while len(surveys) < len(agents):
        requests = {place: agent.talk.remote(Orders()) for place, agent in agents.items()}
        answers: dict[int, list[bytes]] = _answers(requests, head, "talk")
        for place, said in answers.items():
            host = f"host {facts[place]}"
            for report in map(pickle.loads, said):
                if report.error is not None:
                    raise _HostUnfit.at([place], f"{host}: {report.error}") from report.error
                if report.ended:
                    raise _HostUnfit.at([place], f"{host}: {report.ended}")
                if report.topology is not None and report.memory is not None:
                    surveys[place] = report.topology, report.memory
        if time.monotonic() > deadline_s:
            slow = next(place for place in agents if place not in surveys)
            raise _HostUnfit.at(
                [slow],
                value=f"host {facts[slow]}",
                rule=f"it has not looked at its devices within {_ANSWER_S:g} s",
                remedy="See whether it is overloaded, or its GPU driver hangs (nvidia-smi there).",
            )
        time.sleep(BEAT_S)
    return surveys


def _answers(
    asked: Mapping[int, Any], head: RayHead, what: str, within_s: float = _ANSWER_S
) -> dict[int, Any]:
    """Returns what the agents answer, by place, if all of them do in time."""
    import ray

    deadline_s = time.monotonic() + within_s
    while True:
        ready, late = ray.wait([*asked.values()], num_returns=len(asked), timeout=_LOOK_S)
        if not late or time.monotonic() > deadline_s:
            break
        head.check()
    answers, reason = {}, ""
    for place, reference in asked.items():
        if reference in ready:
            try:
                answers[place] = ray.get(reference)
            except ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1]
    silent = frozenset(asked) - frozenset(answers)
    if not silent:
        return answers
    if reason:
        raise _HostUnfit.at(
            silent,
            value="cluster",
            rule=f"an agent could not {what} ({reason})",
            remedy="Install gmi-drl on each host, in the same version.",
        )
    raise _HostUnfit.at(
        silent,
        value="cluster",
        rule=f"{len(silent)} of {counted(len(asked), 'agent')} did not {what} in {within_s:g} s",
        remedy="See Ray's logs on the hosts, and whether gmi-drl is installed on each.",
    )
