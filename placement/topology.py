"""Defines what GMIs are placed on: devices, each one GPU or one group of CPU cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeVar

NETWORK: Final = "network"  # how a device reaches one of another host
_T = TypeVar("_T")


@dataclass(frozen=True)
class MigInstance:
    """A MIG device that exists: what a process sees as a GPU of its own."""

    uuid: str  # "MIG-..."
    profile: str  # "3g.40gb"; "1c.3g.40gb" where a GPU instance has several compute instances
    # Its first memory slice, and how many. Only root is told these; other users get a possible
    # placement, which distinguishes the instances of a GPU.
    start: int
    size: int
    mem_bytes: int
    sm_count: int | None = None


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a GPU."""

    pid: int
    kind: Literal["compute", "mps", "graphics"]
    mem_bytes: int | None = None  # None where the driver does not say


@dataclass(frozen=True)
class Device:
    """One GPU with the cores near it, or one group of cores. None: not known, or not of a GPU."""

    index: int  # its place in Topology.devices; the paper's gpu_id
    kind: Literal["cpu", "gpu"]
    name: str
    cores: tuple[int, ...]
    uuid: str | None = None
    sm_count: int | None = None
    mem_bytes: int | None = None
    capability: tuple[int, int] | None = None  # compute capability, (8, 0) for an A100
    numa_node: int | None = None
    compute_mode: Literal["default", "exclusive", "prohibited"] | None = None
    mig_mode: bool | None = None  # None: the kind has no MIG
    mig: tuple[MigInstance, ...] = ()  # those that exist, by their start
    processes: tuple[GpuProcess, ...] = field(default=(), compare=False)  # at discovery
    host: int = 0  # the rank of its host, of several that train together
    share: float = 1.0  # the part of a GPU that this run may use

    @property
    def held_bytes(self) -> int:
        """Returns the memory that `processes` hold, as far as the driver says."""
        return sum(process.mem_bytes or 0 for process in self.processes)


@dataclass(frozen=True)
class Topology:
    """The devices that a run may use, of one machine or host by host, by their indices.

    `links[i][j]` says how device i reaches device j ("NVLink x12", "PCIe switch", "host bridge",
    "NUMA node", "system"; "" for itself), `peers[i][j]` whether i reads the memory of j without the
    host; both are empty for groups of cores. `unusable` has a reason for each backend that cannot
    be used on this machine at all, `left_out` one for each GPU that is there and not in `devices`.
    """

    devices: tuple[Device, ...]
    links: tuple[tuple[str, ...], ...] = ()
    peers: tuple[tuple[bool, ...], ...] = ()
    unusable: tuple[tuple[str, str], ...] = field(default=(), compare=False)  # (backend, why)
    left_out: tuple[str, ...] = field(default=(), compare=False)
    cuda: tuple[int, int] | None = field(default=None, compare=False)  # that the driver has

    @property
    def hosts(self) -> int:
        """Returns the number of hosts that the devices are of."""
        return 1 + max((device.host for device in self.devices), default=0)

    @classmethod
    def joined(cls, hosts: Sequence[Topology]) -> Topology:
        """Returns the devices of several hosts as one topology, numbered host by host."""
        devices: list[Device] = []
        for host, part in enumerate(hosts):
            for device in part.devices:
                devices.append(replace(device, index=len(devices), host=host))
        host_0, sizes = hosts[0], [len(part.devices) for part in hosts]
        return cls(
            tuple(devices),
            _blocks([part.links for part in hosts], sizes, ("", "unknown", NETWORK)),
            _blocks([part.peers for part in hosts], sizes, (True, False, False)),
            unusable=host_0.unusable,
            left_out=tuple(line for part in hosts for line in part.left_out),
            cuda=host_0.cuda,
        )

    def of_host(self, host: int) -> Topology:
        """Returns the devices of one host, numbered from 0: what `joined` was given."""
        places = [device.index for device in self.devices if device.host == host]
        linked = [place for place in places if self.devices[place].kind == "gpu"]
        return replace(
            self,
            devices=tuple(
                replace(self.devices[place], index=index, host=0)
                for index, place in enumerate(places)
            ),
            links=tuple(tuple(self.links[i][j] for j in places) for i in linked if self.links),
            peers=tuple(tuple(self.peers[i][j] for j in places) for i in linked if self.peers),
            unusable=self.unusable if host == 0 else (),  # of the others it is not kept
        )

    @classmethod
    def from_cores(cls, cores: Sequence[int], num_gpus: int = 1) -> Topology:
        """Returns `num_gpus` groups of cores, each contiguous, as even as can be.

        With fewer cores than groups some groups are empty; `check` says so.
        """
        ordered = sorted(set(cores))
        groups = [share(ordered, num_gpus, index) for index in range(num_gpus)]
        return cls(
            tuple(
                Device(index, "cpu", f"CPU cores {format_cores(group)}", group)
                for index, group in enumerate(groups)
            )
        )


def _blocks(
    parts: Sequence[tuple[tuple[_T, ...], ...]], sizes: Sequence[int], values: tuple[_T, _T, _T]
) -> tuple[tuple[_T, ...], ...]:
    """Returns square matrices of these sizes along a diagonal; nothing where all are empty.

    `values`: on the diagonal and beside it in a matrix that is empty, and beside matrices.
    """
    own, unknown, other = values
    if not any(parts):
        return ()
    size, rows, begin = sum(sizes), [], 0
    for part, count in zip(parts, sizes, strict=True):
        numbers = range(count)
        block = part or [tuple(own if i == j else unknown for j in numbers) for i in numbers]
        rows += [(other,) * begin + row + (other,) * (size - begin - count) for row in block]
        begin += count
    return tuple(rows)


def share(cores: Sequence[int], parts: int, index: int) -> tuple[int, ...]:
    """Returns part `index` of `parts` of the cores: contiguous, and as even as can be."""
    return tuple(cores[index * len(cores) // parts : (index + 1) * len(cores) // parts])


def share_at_least_one(cores: Sequence[int], parts: int, index: int) -> tuple[int, ...]:
    """Returns the same; of fewer cores than parts one, which others have too."""
    begin = index * len(cores) // parts
    return share(cores, parts, index) or tuple(cores[begin : begin + 1])


def format_cores(cores: Sequence[int]) -> str:
    """Returns cores as people write them: (0, 1, 2, 5) is "0-2,5"."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"
