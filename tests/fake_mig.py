"""MIG below nvidia-ml-py: GPU instances and compute instances, made and destroyed by its rules."""

from dataclasses import dataclass, field


@dataclass
class FakeComputeInstance:
    """What a process sees as a GPU; `in_use_by` are the pids of those that do."""

    id: int
    profile_id: int
    uuid: str
    in_use_by: list[int] = field(default_factory=list)


@dataclass
class FakeGpuInstance:
    """A part of a GPU, with `size` memory slices from `start` on."""

    id: int
    profile_id: int
    start: int
    size: int
    compute_instances: list[FakeComputeInstance] = field(default_factory=list)


class FakeMig:
    """The functions that change MIG state, over `FakeGpu.gpu_instances`; FakeLib inherits it."""
