"""Joins the cluster of a config, and starts an agent on each host of a launch."""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from gmi_drl.placement import ClusterConfig, Config, Topology, counted
from gmi_drl.runtime import ActorRuntimeError

from .agent import NodeAgent, own_versions
from .messages import BEAT_S, SILENCE_S, HostFacts, HostsError, Orders, Report

_ANSWER_S: Final = 60.0  # for an agent to start, and for its launcher to look at the devices
_END_S: Final = 30.0


@dataclass(frozen=True)
class Host:
    """A host of the launch: its agent, and what it says of itself."""

    agent: Any  # Ray's handle
    facts: HostFacts
    topology: Topology

    def __str__(self) -> str:
        return f"{self.facts.address} ({self.facts.name})"


@contextmanager
def joined(config: Config) -> Iterator[list[Host]]:
    """Yields the hosts that the config asks for, by their rank; they are given back at the end.

    HostsError says what is missing, at the latest after `cluster.wait_s`.
    """
    cluster = config.cluster
    assert cluster is not None
    try:
        import ray
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
        nodes.join(
            cluster.address, trusted=True, num_cpus=None, num_gpus=0, resources={},
            object_store_bytes=None,
        )  # fmt: skip
    except (ConnectionError, ActorRuntimeError) as error:
        nodes.leave()
        raise HostsError(
            value=f"cluster.address={cluster.address}",
            rule=f"this cluster cannot be joined ({error})",
            remedy="See that it runs and has the token that this program has, and give the "
            "address that `ray start --head` has printed.",
        ) from error
    group, agents = None, []
    try:
        bundle = _bundle(config, nodes.hosts())
        group = _placed(cluster, bundle)
        agents = _started(cluster.hosts, group, bundle)
        yield _described(agents, config)
    finally:
        with suppress(Exception):  # a cluster that is gone
            ray.wait([agent.end.remote() for agent in agents], len(agents) or 1, timeout=_END_S)
            for agent in agents:
                ray.kill(agent)
            if group is not None:
                remove_placement_group(group)
        nodes.leave()


def _bundle(config: Config, known: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns what is set aside on each host: a core for the agent, and the GPUs that are used."""
    assert config.cluster is not None
    gpus = sorted((node["Resources"].get("GPU", 0.0) for node in known), reverse=True)
    fewest = gpus[: config.cluster.hosts][-1] if gpus else 0.0
    if config.hardware.backend == "cpu" or not fewest:
        return {"CPU": 1}
    return {"CPU": 1, "GPU": float(config.hardware.num_gpus or fewest)}


def _placed(cluster: ClusterConfig, bundle: Mapping[str, float]) -> Any:
    """Sets so much aside on as many hosts as are wanted; waits for them."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([dict(bundle)] * cluster.hosts, strategy="STRICT_SPREAD")
    deadline_s = time.monotonic() + cluster.wait_s
    try:
        while not group.wait(timeout_seconds=1):
            if time.monotonic() > deadline_s:
                raise _missing(cluster, bundle)
    except BaseException:
        with suppress(Exception):
            remove_placement_group(group)
        raise
    return group


def _missing(cluster: ClusterConfig, bundle: Mapping[str, float]) -> HostsError:
    """Says what the hosts that are there lack."""
    from ray._private import state

    from gmi_drl.runtime.engines.ray import nodes

    free = state.available_resources_per_node()
    said = []
    for node in nodes.hosts():
        there, left = node["Resources"], free.get(node["NodeID"], {})
        has = ", ".join(
            f"{left.get(what, 0.0):g} of {there.get(what, 0.0):g} {what}" for what in bundle
        )
        said.append(f"{node['NodeManagerAddress']} has {has} free")
    wants = " and ".join(f"{much:g} {what}" for what, much in bundle.items())
    return HostsError(
        value=f"cluster.hosts={cluster.hosts}",
        rule=f"each wants {wants}, and after {cluster.wait_s:g} s the cluster at {cluster.address} "
        f"has {counted(len(said), 'host')}: {'; '.join(said)}",
        remedy="Add hosts, end what holds them, or lower cluster.hosts.",
    )


def _started(hosts: int, group: Any, bundle: Mapping[str, float]) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    actor = ray.remote(NodeAgent)
    return [
        actor.options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_restarts=0,
            max_concurrency=4,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=place
            ),
        ).remote("GPU" in bundle)
        for place in range(hosts)
    ]


def _described(agents: Sequence[Any], config: Config) -> list[Host]:
    """Asks all agents for their hosts; returns these by address, as their rank goes by it."""
    import cloudpickle  # type: ignore[import-untyped]

    facts: list[HostFacts] = _answers([agent.facts.remote() for agent in agents], "start")
    pairs = sorted(zip(facts, range(len(agents)), strict=True), key=lambda pair: _place(pair[0]))
    ours = own_versions()
    for fact, place in pairs:
        for name, version in ours.items():
            if fact.versions[name] != version:
                raise HostsError(
                    value=f"host {fact.address} ({fact.name})",
                    rule=f"it has {name} {fact.versions[name]}, and this program {version}",
                    remedy="Install the same on all hosts.",
                )
        _check_clock(fact, agents[place])
    told = cloudpickle.dumps(config)
    _answers([agent.tell.remote(told) for agent in agents], "be told the config")
    topologies = _topologies(agents, facts)
    return [Host(agents[place], fact, topologies[place]) for fact, place in pairs]


def _check_clock(facts: HostFacts, agent: Any) -> None:
    """HostsError if a host's clock and that of this program are too far apart."""
    asked_s = time.time()
    (there_s,) = _answers([agent.clock.remote()], "tell the time")
    ahead_s, behind_s = there_s - time.time(), asked_s - there_s  # at least, as answers take time
    if max(ahead_s, behind_s) > SILENCE_S:
        raise HostsError(
            value=f"host {facts.address} ({facts.name})",
            rule=f"its clock is {max(ahead_s, behind_s):.0f} s "
            f"{'ahead of' if ahead_s > 0 else 'behind'} that of this program; {SILENCE_S:g} s are "
            "let pass",
            remedy="Set both by NTP (`timedatectl` says on each whether it is).",
        )


def _place(facts: HostFacts) -> tuple[Any, ...]:
    try:
        address = ipaddress.ip_address(facts.address)
    except ValueError:
        return 9, facts.address, facts.node_id
    return address.version, int(address), facts.node_id


def _topologies(agents: Sequence[Any], facts: Sequence[HostFacts]) -> list[Topology]:
    """Waits for the launchers of all hosts to have looked at the devices there."""
    found: dict[int, Topology] = {}
    deadline_s = time.monotonic() + _ANSWER_S
    while len(found) < len(agents):
        reports: list[Report] = _answers([agent.talk.remote(Orders()) for agent in agents], "talk")
        for place, report in enumerate(reports):
            who = f"host {facts[place].address} ({facts[place].name})"
            if report.error is not None:
                raise HostsError(f"{who}: {report.error}") from report.error
            if report.ended:
                raise HostsError(f"{who}: {report.ended}")
            if report.topology is not None:
                found[place] = report.topology
        if time.monotonic() > deadline_s:
            late = next(place for place in range(len(agents)) if place not in found)
            raise HostsError(
                value=f"host {facts[late].address} ({facts[late].name})",
                rule=f"it has not looked at its devices within {_ANSWER_S:g} s",
                remedy="See whether it is overloaded, or its GPU driver hangs (nvidia-smi there).",
            )
        time.sleep(BEAT_S)
    return [found[place] for place in range(len(agents))]


def _answers(references: Sequence[Any], what: str) -> list[Any]:
    """Returns what all agents answer, within a minute."""
    import ray

    try:
        return list(ray.get(list(references), timeout=_ANSWER_S))
    except ray.exceptions.GetTimeoutError:
        raise HostsError(
            value="cluster",
            rule=f"its agents did not {what} within {_ANSWER_S:g} s",
            remedy="See Ray's logs on the hosts, and whether gmi-drl is installed on each.",
        ) from None
    except ray.exceptions.RayError as error:
        last = str(error).strip().splitlines()[-1]
        raise HostsError(
            value="cluster",
            rule=f"an agent could not {what} ({last})",
            remedy="Install gmi-drl on each host, in the same version.",
        ) from error
