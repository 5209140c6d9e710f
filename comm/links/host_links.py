"""Plans how hosts combine what each has reduced, by what that was measured to take between them.

Leaders of hosts measure it when they meet (comm/reducers/host_ways.py), and each keeps it beside
the links of its machine, by the addresses of the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, cast

from gmi_drl.comm.group.group import Wire
from gmi_drl.comm.hosts import steps
from gmi_drl.runtime.cache_files import locked

from .link_record import machines, record_path, store, version_of
from .links import HostsWay, Link, LinkKey, fastest

_HOSTS: Final = "hosts"  # of a fingerprint: their addresses, in the order of their ranks


@dataclass(frozen=True)
class BetweenHosts:
    """Holds the links between the hosts of these addresses, by the way of combining."""

    addresses: tuple[str, ...]
    measured_s: float  # when, of the calendar
    links: Mapping[HostsWay, Link]


@dataclass(frozen=True)
class HostsReduction:
    """Says how so many hosts combine vectors of `nbytes`, as float32."""

    count: int
    nbytes: int
    way: HostsWay
    sent_bytes: int  # by the host that sends the most, each time; of gloo those of a ring
    repeatable: bool  # chosen by the size alone, whatever was measured
    measured: BetweenHosts | None  # what the way was chosen by


def reduction_across(
    count: int, numel: int, near: str, wire: Wire, *, trusted: bool, repeatable: bool
) -> HostsReduction:
    """Plans how `count` hosts, among them `near`, combine so many float32.

    `trusted`: their network, so that gloo may be used. With `repeatable` nothing is left to clocks.
    """
    nbytes = 4 * numel
    between = None if repeatable else newest(count, near, wire)
    if between is not None and not trusted:
        others: dict[HostsWay, Link] = {
            way: link for way, link in between.links.items() if way != "gloo"
        }
        between = replace(between, links=others) if others else None
    way: HostsWay = steps.usual_way(count, nbytes)
    if between is not None:
        way = fastest(between.links, nbytes)
    elif trusted and nbytes >= steps.GLOO_BYTES:
        way = "gloo"
    by_steps: steps.Way = "two_steps" if way == "gloo" else way
    itemsize = 2 if wire == "bf16" and way != "gloo" else 4
    return HostsReduction(
        count=count, nbytes=nbytes, way=way,
        sent_bytes=steps.sent_bytes(by_steps, count, numel, itemsize), repeatable=repeatable,
        measured=between,
    )  # fmt: skip


def keep(addresses: Sequence[str], links: Mapping[HostsWay, Link], wire: Wire) -> None:
    """Keeps the links between these hosts; not if another process writes the record just now.

    That may be the leader of another of these hosts, where they share a home directory.
    """
    path, count = record_path(), len(addresses)
    fingerprint = {
        _HOSTS: " ".join(addresses), "torch": version_of("torch"), "gmi-drl": version_of("gmi-drl"),
    }  # fmt: skip
    with locked(path.with_suffix(".lock"), timedelta(0)) as lock:
        if lock.held:
            keys = {way: LinkKey(way, count, 1, count, 0, wire) for way in links}
            store(path, fingerprint, {keys[way]: link for way, link in links.items()})


def newest(count: int, near: str, wire: Wire) -> BetweenHosts | None:
    """Returns the newest links among so many hosts; of those with the host `near`, if any are."""
    try:
        kept = machines(record_path())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    between = [
        BetweenHosts(
            tuple(machine["fingerprint"][_HOSTS].split()),
            machine["measured"],
            {
                cast("HostsWay", key.kind): link
                for key, link in machine["links"].items()
                if key.wire == wire
            },
        )
        for machine in kept
        if _HOSTS in machine["fingerprint"]
    ]
    of_count = [hosts for hosts in between if hosts.links and len(hosts.addresses) == count]
    return max(
        of_count, key=lambda hosts: (near in hosts.addresses, hosts.measured_s), default=None
    )
