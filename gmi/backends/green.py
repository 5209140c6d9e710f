"""The backend green makes GMIs threads of one process, each on SMs of its own (green contexts).

The whole device is split once, so that no two groups share an SM; a green context is over some of
the groups, and work in a stream of it runs on those SMs and no others. CUDA driver API, "Green
Contexts".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gmi_drl import runtime
from gmi_drl.gmi import cuda_driver
from gmi_drl.gmi.cuda_driver import checked
from gmi_drl.gmi.errors import SliceError
from gmi_drl.placement.slicing import group_sms, groups_of, num_groups

from .backend import Slices, System
from .cpu import verify_cores
from .gpu import GpuBackend, uuid_of, verify_device, verify_outside_mps

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device, Topology

_lock = threading.Lock()
_partition: Partition | None = None  # the split of the one GPU that this process sees
_thread_state = threading.local()  # `green`: the GreenContext of this thread


# CUDA 12.4 has green contexts, 12.5 their streams (cuGreenCtxStreamCreate). The extra installs
# packages for CUDA 13 (cuda-bindings, cupy), with which this was tested.
_CUDA: Final = (13, 0)
_GROUPS_VARIABLE: Final = "GMI_DRL_GREEN_GROUPS"  # the groups that a GPU's GMIs need together


class GreenBackend(GpuBackend):
    """Runs GMIs as threads of one process, each on its own groups of SMs."""

    gmis_are_threads = True
    torch_limits_memory = True
    trial_gmis = 2

    def prepare(self, gmis: Sequence[GmiSpec], topology: Topology) -> Slices:
        """Makes nothing; SliceError where the GMIs of a GPU want more SMs than it has."""
        needed = {}
        for device in topology.devices:
            if specs := [spec for spec in gmis if spec.gpu_id == device.index]:
                needed[device.index] = _num_groups_needed(specs, device)
        return GreenSlices(self, needed)

    def enter(self, spec: GmiSpec, device: Device) -> None:
        """Takes the cores and the next free groups of SMs, and makes their stream this thread's.

        Torch works there from now on, also in backward passes, which run in the forward's stream.
        """
        super().enter(spec, device)
        verify_device(spec, uuid_of(spec))
        verify_outside_mps(spec)
        with _lock:
            _thread_state.green = _take(spec, device)
        _set_stream(spec, _thread_state.green.stream)

    def verify(self, spec: GmiSpec, device: Device) -> None:
        """Raises SliceError unless this thread works on the SMs of the spec, and on no others."""
        verify_cores(spec)
        import torch

        context: GreenContext = _thread_state.green
        stream = torch.cuda.current_stream().cuda_stream
        if green_context_of(stream) != int(context.handle):
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: its thread works on stream {stream:#x}, which is not of "
                "its green context. Do not call torch.cuda.set_stream while modules are preloaded."
            )
        min_sms = context.num_groups * group_sms(device)
        if context.sm_count < min_sms:
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: sm_percent={spec.sm_percent}, {min_sms} SMs; its green "
                f"context has {context.sm_count}. Use backend mps, or fewer GMIs."
            )

    def sm_count(self) -> int:
        context: GreenContext = _thread_state.green
        return context.sm_count

    def why_not_here(self, system: System) -> str:
        if system.cuda is None or system.cuda >= _CUDA:
            return ""
        return (
            f"the driver runs CUDA {'.'.join(map(str, system.cuda))}, and green contexts are used "
            f"from {'.'.join(map(str, _CUDA))} on; update the driver"
        )


class GreenSlices(Slices):
    """Tells the process of a GPU's GMIs how many groups these need together."""

    def __init__(self, backend: GreenBackend, wanted: Mapping[int, int]) -> None:
        super().__init__(backend)
        self._wanted = wanted

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        return super().environment(spec) | {_GROUPS_VARIABLE: str(self._wanted[spec.gpu_id])}


def _num_groups_needed(gmis: Sequence[GmiSpec], device: Device) -> int:
    """Returns the groups that GMIs need together; SliceError if the GPU has fewer."""
    groups, total = num_groups(device), 0
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
        total += count
    if total > groups:
        shares = ", ".join(f"GMI {spec.gmi_id}: {_groups(spec, device)}" for spec in gmis)
        raise SliceError(
            f"{name}: its GMIs want {total} groups of {group_sms(device)} SMs ({shares}); it has "
            f"{groups}. Lower their sm_percent: they sum to "
            f"{sum(spec.sm_percent or 100 for spec in gmis)}."
        )
    return total


def _groups(spec: GmiSpec, device: Device) -> int:
    return groups_of(spec.sm_percent, num_groups(device))


def _take(spec: GmiSpec, device: Device) -> GreenContext:
    """Takes the groups of one GMI from the split that this process makes of its GPU.

    As chips differ in which SMs are in use, the driver may make fewer groups than SMs /
    `group_sms`. If there are too few for all GMIs, each gets its percentage of them.
    """
    global _partition
    if _partition is None:
        _partition = Partition(group_sms(device))
    count, text = _groups(spec, device), f"GmiSpec {spec.gmi_id}: sm_percent={spec.sm_percent}"
    if device.sm_count is not None and _partition.sm_count < device.sm_count:
        raise SliceError(
            f"{text} of {device.sm_count} SMs; GPU {device.index} has {_partition.sm_count}. Make "
            "the layout anew on this machine."
        )
    groups = _partition.num_groups
    if int(os.environ.get(_GROUPS_VARIABLE, 0)) > groups:
        num_given = groups_of(spec.sm_percent, groups)
        message = (
            f"{text}, {count} groups of SMs; the driver cuts GPU {device.index} into {groups} "
            f"groups, not {num_groups(device)}, and the GMI gets {num_given}."
        )
        runtime.emit({"kind": "warning", "message": message})
        count = num_given
    if not 0 < count <= _partition.num_free:
        remedy = "Lower the shares, or use" if count else "Raise its share, and use"
        raise SliceError(
            f"{text}, {count} groups of SMs; {_partition.num_free} of {groups} are free on GPU "
            f"{device.index}. {remedy} fewer GMIs."
        )
    return _partition.take(count)


def _set_stream(spec: GmiSpec, stream: int) -> None:
    """Makes a stream the current one of torch in this thread."""
    import torch

    if not torch.cuda.is_available():
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: torch {torch.__version__} finds no CUDA. Install a torch that "
            "is built for CUDA, of a version that the driver runs."
        )
    torch.cuda.set_stream(torch.cuda.ExternalStream(stream))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class GreenContext:
    """Some SMs, and a stream that runs on them alone, for the life of the process."""

    handle: Any  # CUgreenCtx
    stream: int  # the address of its CUstream
    num_groups: int
    sm_count: int


class Partition:
    """Splits all SMs of the device once into groups of `group_sms`, given out in order.

    The primary context, in which torch works, is retained for the life of the process.
    """

    def __init__(self, group_sms: int) -> None:
        self._device = cuda_driver.device()
        module = self._module = cuda_driver.driver()
        checked("primary context", module.cuDevicePrimaryCtxRetain(self._device))
        sms = checked("SMs of the GPU", module.cuDeviceGetDevResource(self._device, self._kind))
        self.sm_count = int(sms.sm.smCount)
        num_groups = max(1, self.sm_count // group_sms)
        groups, count, _ = checked(
            f"SMs in groups of {group_sms}",
            module.cuDevSmResourceSplitByCount(num_groups, sms, 0, group_sms),
        )
        self._free = list(groups[:count])
        self.num_groups = int(count)  # may be fewer than SMs // group_sms: the driver decides

    @property
    def num_free(self) -> int:
        """Counts the groups that are not taken."""
        return len(self._free)

    def take(self, count: int) -> GreenContext:
        """Returns a green context of the next `count` groups, 1 to `num_free`."""
        module, groups = self._module, self._free[:count]
        text = f"a green context of {count} groups"
        descriptor = checked(text, module.cuDevResourceGenerateDesc(groups, len(groups)))
        flags = module.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM  # the only flag of 12.x
        handle = checked(text, module.cuGreenCtxCreate(descriptor, self._device, int(flags)))
        del self._free[:count]
        flags = module.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = checked("a stream of it", module.cuGreenCtxStreamCreate(handle, int(flags), 0))
        resource = checked("SMs of it", module.cuGreenCtxGetDevResource(handle, self._kind))
        return GreenContext(handle, int(stream), count, int(resource.sm.smCount))

    @property
    def _kind(self) -> Any:
        return self._module.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM


def green_context_of(stream: int) -> int:
    """Returns the address of the green context that a stream belongs to; 0 for none."""
    module = cuda_driver.driver()
    context = module.cuStreamGetGreenCtx(module.CUstream(stream))
    return int(checked("green context of a stream", context) or 0)


def is_green(stream: int) -> bool:
    """Tells whether the stream at this address is a green context's; the default stream is not."""
    try:
        return stream != 0 and green_context_of(stream) != 0
    except cuda_driver.DriverError as error:
        if error.code:
            raise
    except RuntimeError:  # cuda-bindings: the driver is older than green contexts
        pass
    return False
