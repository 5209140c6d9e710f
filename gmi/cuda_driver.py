"""Asks the CUDA driver in a GMI's process, through cuda-bindings; nothing here needs torch.

Any call starts the driver (cuInit), which fixes what the process sees. No context is made.
"""

from __future__ import annotations

import time
import uuid as uuids
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gmi_drl.placement.faults import install

from .errors import GmiError

SM_COUNT: Final = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
MPS_ENABLED: Final = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED

# By CUresult; remedies for CUDA_ERROR_MPS_* are from the MPS guide's troubleshooting.
_TEXTS: Final = {
    100: "no device is visible. Check that nvidia-smi -L lists what CUDA_VISIBLE_DEVICES names",
    805: "the MPS daemon or its server cannot be reached. Look at its log, control.log",
    806: "the call to the MPS server failed: it may have died. Look at its log, server.log",
    807: "the MPS server takes no clients now: it starts, ends a client, or recovers from a fatal "
    "fault of one, until all of that GPU have left. Try again when they have",
    808: "the GPU has no room for another MPS client. Use fewer GMIs on it",
    809: "the GPU has no connections left for MPS clients. Use fewer GMIs on it, or a lower "
    "CUDA_DEVICE_MAX_CONNECTIONS",
    810: "the MPS server has ended this client. A process started anew can use CUDA again",
}
_NOT_YET: Final = (805, 807)
_POLL_S: Final = 0.05  # between two attempts to start


@dataclass(eq=False, repr=False)
class DriverError(GmiError):
    """The CUDA driver has refused a call; `code` and `name` are its CUresult (0: no driver)."""

    what: str
    code: int
    name: str

    def __str__(self) -> str:
        text = _TEXTS.get(self.code)
        return f"{self.what}: {self.name}" + (f" ({self.code}): {text}." if text else "")


def driver() -> Any:
    """Imports cuda.bindings.driver without starting it; DriverError if it is not installed."""
    try:
        from cuda.bindings import driver as module  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        text = f"{error}. Install it: {install('cuda')}."
        raise DriverError("the CUDA driver", 0, text) from None
    return module


def checked(what: str, result: tuple[Any, ...]) -> Any:
    """Returns the results of a driver call without its CUresult; DriverError with `what`."""
    code = int(result[0])
    if code:
        raise DriverError(what, code, getattr(result[0], "name", str(code)))
    values = result[1:]
    return values[0] if len(values) == 1 else values or None


def start(timeout: timedelta = timedelta(0)) -> None:
    """Starts the driver; tries again until `timeout` while an MPS server takes no clients."""
    module = driver()
    deadline_s = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            checked("cuInit", module.cuInit(0))
            return
        except DriverError as error:
            if error.code not in _NOT_YET or time.monotonic() > deadline_s:
                raise
        except RuntimeError as error:  # cuda-bindings: there is no libcuda
            raise DriverError("cuInit", 0, f"no CUDA driver: {error}") from None
        time.sleep(_POLL_S)


def device_count() -> int:
    """Returns how many devices this process sees; DriverError where there is none."""
    start()
    return int(checked("cuDeviceGetCount", driver().cuDeviceGetCount()))


def attribute(number: int) -> int:
    """Returns a CUdevice_attribute of the first device that is visible."""
    kind = driver().CUdevice_attribute(number)
    return int(checked(f"attribute {number}", driver().cuDeviceGetAttribute(kind, device())))


def sm_count() -> int:
    """Returns the SMs that this process may use of its device, under MPS those of its share."""
    return attribute(SM_COUNT)


def mps_enabled() -> bool:
    """Tells whether this process is a client of an MPS server."""
    return bool(attribute(MPS_ENABLED))


def device_uuid() -> str:
    """Returns the UUID of the first device, or MIG device, without NVML's prefix."""
    uuid = checked("UUID of the device", driver().cuDeviceGetUuid(device()))
    return str(uuids.UUID(bytes=bytes(uuid.bytes)))


def total_mem_bytes() -> int:
    """Returns the memory of the first device, as the driver reports it to this process."""
    return int(checked("memory of the device", driver().cuDeviceTotalMem(device())))


def graph_mem_high_bytes(ordinal: int) -> int:
    """Returns the peak of allocations in CUDA graphs of this process on a device.

    They come from the driver's own memory, which no pool counts (cudaMallocAsync in a capture).
    """
    module = driver()
    peak = module.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH
    result = module.cuDeviceGetGraphMemAttribute(device(ordinal), peak)
    return int(checked(f"memory of graphs on device {ordinal}", result))


def device(ordinal: int = 0) -> Any:
    """Returns the driver's handle (CUdevice) of the device at `ordinal` of those visible."""
    start()
    return checked(f"device {ordinal}", driver().cuDeviceGet(ordinal))
