"""What there is to place GMIs on: devices, each one GPU or one group of CPU cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Device:
    """One GPU with the cores near it, or one group of cores."""

    index: int  # its place in Topology.devices; the paper's gpu_id
    kind: Literal["cpu", "gpu"]
    name: str
    cores: tuple[int, ...]
    uuid: str | None = None  # of a GPU
    sm_count: int | None = None
    mem_bytes: int | None = None


@dataclass(frozen=True)
class Topology:
    """The devices of one machine that a run may use."""

    devices: tuple[Device, ...]

    @classmethod
    def from_cores(cls, cores: Sequence[int], num_gpus: int = 1) -> Topology:
        """`num_gpus` groups of cores, each contiguous in the sorted cores, as even as can be.

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
    """Part `index` of `parts` of the cores: contiguous, and no part is two larger than another."""
    return tuple(cores[index * len(cores) // parts : (index + 1) * len(cores) // parts])


def format_cores(cores: Sequence[int]) -> str:
    """Cores as people write them: (0, 1, 2, 5) is "0-2,5"."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"
