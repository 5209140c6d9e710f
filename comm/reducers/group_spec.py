"""Makes reducer groups: a GroupSpec is made by the launcher, and every GMI joins with its rank.

Nothing here imports torch, as the launcher must not.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from gmi_drl.comm.group.barrier import MAX_SIZE, give_up, header_bytes
from gmi_drl.comm.group.group import DEFAULT_TIMEOUT, WIRES, Group, Wire
from gmi_drl.comm.hosts.roster import HostSpec
from gmi_drl.placement.reduction import STRATEGIES, Strategy, shape_fault
from gmi_drl.runtime.store.memfd import Memfd

from .strategies import REDUCERS


@dataclass(frozen=True)
class GroupSpec:
    """The means to join a group; it passes through the arguments of an actor call."""

    members: tuple[str, ...]
    memfd: Memfd | None  # None for a group of one
    devices: tuple[int, ...]  # by rank
    strategy: Strategy = "mpr"
    wire: Wire = "fp32"
    directory: Path | None = None  # of this group alone, made and removed by its rings
    hosts: HostSpec | None = None  # where GMIs of other hosts are in the group as well

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def mpl(self) -> tuple[tuple[int, ...], ...]:
        """Returns ranks by device, ascending (GMI-DRL's MPL); devices without one are left out."""
        return _mpl(self.devices)

    def join(self, rank: int, timeout: timedelta = DEFAULT_TIMEOUT) -> Group:
        """Joins this process as `rank`; waits for nobody. `timeout` holds for every later wait.

        When the process that had joined as `rank` is gone, this one takes its place: everybody's
        next call, its own included, raises GroupReformed.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank}: this group has ranks 0 to {self.size - 1}.")
        if timeout <= timedelta(0):
            raise ValueError(f"timeout {timeout}: must be more than nothing. Use e.g. 30 s.")
        if self.memfd is None:
            from .local import LocalGroup

            return LocalGroup(self.members[0])
        from .shared_group import SharedGroup

        local = SharedGroup(self, rank, timeout)
        if self.hosts is None:
            return local
        from .hosts import HostsGroup

        return HostsGroup(local, self.hosts, timeout)

    def give_up(self, rank: int, why: str) -> None:
        """Has the others find PeerLeft where they wait for `rank`, whose process is gone for good.

        For the maker of the group, which has ended that process.
        """
        if self.memfd is not None:
            give_up(self.memfd.map(0, header_bytes(self.size)), rank, why)


def create_group(
    members: Sequence[str], devices: Sequence[int] | None = None, *, strategy: Strategy = "mpr",
    wire: Wire = "fp32", directory: Path | str | None = None, hosts: HostSpec | None = None,
) -> GroupSpec:  # fmt: skip
    """Makes a group with a rank for each of `members`, named as errors shall name them.

    `devices` has the index of each rank's device (all on one by default). `directory` is a private
    folder on this host, where the ranks of rings find each other (mrr, har). A group of one is
    local whatever is asked for. Its shared memory has no name and goes when the last process that
    holds it does. With `hosts` they are one host's members of a group over several, and `strategy`
    is what they do among themselves. ValueError when the strategy cannot serve these devices.
    """
    size = len(members)
    devices = [0] * size if devices is None else devices
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"{size} members: a group has 1 to {MAX_SIZE}.")
    if len(devices) != size:
        raise ValueError(f"{len(devices)} devices for {size} members: give one for each.")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy {strategy!r}: use {', '.join(STRATEGIES)}.")
    if wire not in WIRES:
        raise ValueError(f"wire {wire!r}: use {' or '.join(WIRES)}.")
    if hosts is not None and hosts.members[hosts.rank] != tuple(members):
        raise ValueError(
            f"host {hosts.rank} has members {hosts.members[hosts.rank]}, and the group is made for "
            f"{tuple(members)}. Name the same ones."
        )
    if size == 1 and hosts is not None:
        strategy = "mpr"  # nothing to add up, but the same memory and meetings
    elif size == 1:
        return GroupSpec(tuple(members), None, tuple(devices), "local", wire)
    if size > 1 and (fault := shape_fault(strategy, _mpl(devices))):
        raise ValueError(f"strategy {strategy}: {fault[0]}. {fault[1]}")
    ring_folder = None
    if REDUCERS[strategy].rings:
        if directory is None:
            raise ValueError(
                f"strategy {strategy}: no directory, and its rings meet in one. Pass a private one."
            )
        ring_folder = Path(directory) / f"rings-{uuid.uuid4().hex[:8]}"
    memfd = Memfd.create("gmi-drl-group", header_bytes(size))
    return GroupSpec(
        tuple(members), memfd, tuple(devices), strategy, wire, directory=ring_folder, hosts=hosts
    )


def solo_group(member: str = "this process") -> Group:
    """Makes a group of one, for code that runs without a launcher."""
    return create_group([member]).join(0)


def _mpl(devices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(rank for rank, device in enumerate(devices) if device == index)
        for index in sorted(set(devices))
    )
