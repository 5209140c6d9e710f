"""Defines what GMIs are placed on: devices, each one GPU or one group of CPU cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class MigInstance:
    """A MIG device that exists: what a process sees as a GPU of its own."""

    uuid: str  # "MIG-..."
    profile: str  # "3g.40gb"; "1c.3g.40gb" where a GPU instance has several compute instances
    # Its first memory slice, and how many. Root alone is told: for others a possible placement,
    # which tells the instances of a GPU apart.
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
    mig_mode: bool | None = None  # None: of a kind without MIG
    mig: tuple[MigInstance, ...] = ()  # those that exist, by their start
    processes: tuple[GpuProcess, ...] = field(default=(), compare=False)  # when it was looked at

    @property
    def held_bytes(self) -> int:
        """Returns the memory that `processes` hold, as far as the driver says."""
        return sum(process.mem_bytes or 0 for process in self.processes)


@dataclass(frozen=True)
class Topology:
    """The devices of one machine that a run may use, in the order of their indices.

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


def share(cores: Sequence[int], parts: int, index: int) -> tuple[int, ...]:
    """Returns part `index` of `parts` of the cores: contiguous, and as even as can be."""
    return tuple(cores[index * len(cores) // parts : (index + 1) * len(cores) // parts])


def format_cores(cores: Sequence[int]) -> str:
    """Returns cores as people write them: (0, 1, 2, 5) is "0-2,5"."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"
