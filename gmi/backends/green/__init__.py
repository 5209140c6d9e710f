"""The backend green makes GMIs threads of one process, each on SMs of its own (green contexts).

It needs no daemon and no rights. Its GMIs read each other's GPU memory as their own, share one
limit on memory and one interpreter (GIL), and die together. It stays outside MPS.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gmi_drl.gmi.backends.backend import PlainSlices
from gmi_drl.gmi.backends.cpu import verify_cores
from gmi_drl.gmi.backends.gpu import GpuBackend, uuid_of, verify_device, verify_outside_mps
from gmi_drl.gmi.errors import SliceError
from gmi_drl.placement.slicing import group_sms, groups_of, num_groups

if TYPE_CHECKING:
    from gmi_drl.gmi.backends.usable import System
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device, Topology

    from .contexts import GreenContext, Partition

_lock = threading.Lock()
_partition: Partition | None = None  # of the one GPU this process sees
_mine = threading.local()  # `green`: the context that this thread works in


# CUDA 12.4 brought green contexts, 12.5 their streams (cuGreenCtxStreamCreate); what the extra
# installs (cuda-bindings, cupy) is of 13, and so is what was tested.
_CUDA: Final = (13, 0)


class GreenBackend(GpuBackend):
    """GMIs that are threads on groups of SMs."""

    gmis_are_threads = True
    torch_limits_memory = True
    trial_gmis = 2

    def prepare(self, gmis: Sequence[GmiSpec], topology: Topology) -> PlainSlices:
        """Makes nothing; SliceError where the GMIs of a GPU want more SMs than it has."""
        for device in topology.devices:
            if specs := [spec for spec in gmis if spec.gpu_id == device.index]:
                _check(specs, device)
        return PlainSlices(self)

    def enter(self, spec: GmiSpec, device: Device) -> None:
        """Takes the cores and the next free groups of SMs, and makes their stream this thread's.

        What torch does in this thread from now on it does there: also backward passes, which run
        on the stream of their forward pass. Starts CUDA in this process.
        """
        super().enter(spec, device)
        verify_device(spec, uuid_of(spec))
        verify_outside_mps(spec)
        with _lock:
            _mine.green = _take(spec, device)
        _use(spec, _mine.green.stream)

    def verify(self, spec: GmiSpec, device: Device) -> None:
        """Raises SliceError unless this thread works on the SMs of the spec, and on no others."""
        verify_cores(spec)
        import torch

        from .contexts import green_context_of

        green: GreenContext = _mine.green
        stream = torch.cuda.current_stream().cuda_stream
        if green_context_of(stream) != int(green.handle):
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: its thread works on stream {stream:#x}, which is not of "
                "its green context. Do not call torch.cuda.set_stream while modules are preloaded."
            )
        least = _groups(spec, device) * group_sms(device)
        if green.sm_count < least:
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: sm_percent={spec.sm_percent}, {least} SMs; its green "
                f"context has {green.sm_count}. Use backend mps, or fewer GMIs."
            )

    def sm_count(self) -> int:
        green: GreenContext = _mine.green
        return green.sm_count

    def why_not_here(self, system: System) -> str:
        if system.cuda is None or system.cuda >= _CUDA:
            return ""
        return (
            f"the driver runs CUDA {'.'.join(map(str, system.cuda))}, and green contexts are used "
            f"from {'.'.join(map(str, _CUDA))} on; update the driver"
        )


def _check(gmis: Sequence[GmiSpec], device: Device) -> None:
    groups, wanted = num_groups(device), 0
    name = f"GPU {device.index} ({device.name})"
    for spec in gmis:
        uuid_of(spec)
        count = _groups(spec, device)
        if count == 0:
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: sm_percent={spec.sm_percent}; {name} is cut into {groups} "
                f"groups of {group_sms(device)} SMs, and that is less than one. Give "
                f"{-(-100 // max(groups, 1))} or more, or use backend mps."
            )
        wanted += count
    if wanted > groups:
        shares = ", ".join(f"GMI {g.gmi_id}: {_groups(g, device)}" for g in gmis)
        raise SliceError(
            f"{name}: its GMIs want {wanted} groups of {group_sms(device)} SMs ({shares}); it has "
            f"{groups}. Lower their sm_percent: they sum to "
            f"{sum(g.sm_percent or 100 for g in gmis)}."
        )


def _groups(spec: GmiSpec, device: Device) -> int:
    return groups_of(spec.sm_percent, num_groups(device))


def _take(spec: GmiSpec, device: Device) -> GreenContext:
    """Takes the groups of one GMI, of the one split that this process makes of its GPU."""
    from .contexts import Partition

    global _partition
    if _partition is None:
        _partition = Partition(group_sms(device))
    count = _groups(spec, device)
    if not 0 < count <= _partition.num_free:
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: sm_percent={spec.sm_percent}, {count} groups of SMs; "
            f"{_partition.num_free} of {_partition.num_groups} are free on GPU {device.index}. "
            "Lower the shares, or make the layout anew on this machine."
        )
    return _partition.take(count)


def _use(spec: GmiSpec, stream: int) -> None:
    """Makes it the stream torch works on in this thread."""
    import torch

    if not torch.cuda.is_available():
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: torch {torch.__version__} finds no CUDA. Install a torch that "
            "is built for CUDA, of a version that the driver runs."
        )
    torch.cuda.set_stream(torch.cuda.ExternalStream(stream))  # type: ignore[no-untyped-call]
