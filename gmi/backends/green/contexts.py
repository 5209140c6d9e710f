"""Cuts the SMs of a GPU into groups inside one process: green contexts (CUDA 13.0 and later).

One split of the whole device, so that no two groups share an SM; a green context over some of the
groups; a stream of it. Work in that stream runs on those SMs and no others. CUDA driver API, "Green
Contexts".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gmi_drl.gmi import cuda_driver
from gmi_drl.gmi.cuda_driver import checked


@dataclass(frozen=True)
class GreenContext:
    """Some SMs, and a stream that runs on them alone. Both are there as long as the process is."""

    handle: Any  # CUgreenCtx
    stream: int  # the address of its CUstream
    sm_count: int


class Partition:
    """All SMs of the device, cut once into groups of `group_sms`, dealt out in order.

    Making it starts CUDA in this process: it retains the primary context, in which torch works,
    for the life of the process. DriverError where the driver has no green contexts.
    """

    def __init__(self, group_sms: int) -> None:
        self._device = cuda_driver.device()
        module = self._module = cuda_driver.driver()
        checked("primary context", module.cuDevicePrimaryCtxRetain(self._device))
        sms = checked("SMs of the GPU", module.cuDeviceGetDevResource(self._device, self._kind))
        wanted = max(1, sms.sm.smCount // group_sms)
        groups, count, _ = checked(
            f"SMs in groups of {group_sms}",
            module.cuDevSmResourceSplitByCount(wanted, sms, 0, group_sms),
        )
        self._free = list(groups[:count])
        self.num_groups = int(count)  # may be fewer than SMs // group_sms: the driver decides

    @property
    def num_free(self) -> int:
        """Counts the groups that nobody has taken."""
        return len(self._free)

    def take(self, count: int) -> GreenContext:
        """Returns a green context of the next `count` groups, 1 to `num_free`.

        Not for two threads at once. Its stream and the default stream do not wait for each other.
        """
        module, mine = self._module, self._free[:count]
        what = f"a green context of {count} groups"
        descriptor = checked(what, module.cuDevResourceGenerateDesc(mine, len(mine)))
        flags = module.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM  # 12.x knows no other
        handle = checked(what, module.cuGreenCtxCreate(descriptor, self._device, int(flags)))
        del self._free[:count]
        flags = module.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = checked("a stream of it", module.cuGreenCtxStreamCreate(handle, int(flags), 0))
        seen = checked("SMs of it", module.cuGreenCtxGetDevResource(handle, self._kind))
        return GreenContext(handle, int(stream), int(seen.sm.smCount))

    @property
    def _kind(self) -> Any:
        return self._module.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM


def green_context_of(stream: int) -> int:
    """Returns the address of the green context that a stream belongs to; 0 for none."""
    module = cuda_driver.driver()
    found = module.cuStreamGetGreenCtx(module.CUstream(stream))
    return int(checked("green context of a stream", found) or 0)


def is_green(stream: int) -> bool:
    """Tells whether the stream at this address is a green context's; the default stream is not.

    Without cuda-bindings there is none of ours.
    """
    try:
        return stream != 0 and green_context_of(stream) != 0
    except cuda_driver.DriverError as error:
        if error.code:
            raise
    except RuntimeError:  # cuda-bindings: the driver is older than green contexts
        pass
    return False
