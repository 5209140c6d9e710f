"""Asks the CUDA driver in a GMI's process, through cuda-bindings; nothing here needs torch.

Any call starts the driver (cuInit), which fixes what the process sees. No context is made.
"""

from __future__ import annotations

import time
import uuid as uuids
from datetime import timedelta
from typing import Any, Final

from gmi_drl.placement.faults import install

from .errors import GmiError

SM_COUNT: Final = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
MPS_ENABLED: Final = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED

# By CUresult; the remedies for CUDA_ERROR_MPS_* are those of the MPS guide's troubleshooting.
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
_LOOK_S: Final = 0.05  # between two tries to get in


class DriverError(GmiError):
    """The CUDA driver refused something: `code` and `name` are its CUresult (0: no driver here)."""

    def __init__(self, what: str, code: int, name: str) -> None:
        super().__init__(what, code, name)
        self.what, self.code, self.name = what, code, name

    def __str__(self) -> str:
        text = _TEXTS.get(self.code)
        return f"{self.what}: {self.name}" + (f" ({self.code}): {text}." if text else "")


def driver() -> Any:
    """Imports cuda.bindings.driver, not started; DriverError where it is not installed."""
    try:
        from cuda.bindings import driver as module  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise DriverError(
            "the CUDA driver", 0, f"{error}. Install it: {install('cuda')}."
        ) from None
    return module


def checked(what: str, result: tuple[Any, ...]) -> Any:
    """Returns what a call of the driver gave beside its CUresult; DriverError if that is an error.

    `what` says in words what was tried.
    """
    code = int(result[0])
    if code:
        raise DriverError(what, code, getattr(result[0], "name", str(code)))
    given = result[1:]
    return given[0] if len(given) == 1 else given or None


def start(timeout: timedelta = timedelta(0)) -> None:
    """Starts the driver. While an MPS server takes no clients yet it tries again, until `timeout`.

    DriverError says what the driver said last. Calling it again is fine.
    """
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
        time.sleep(_LOOK_S)


def device_count() -> int:
    """Returns how many devices this process sees; DriverError where there is none."""
    start()
    return int(checked("cuDeviceGetCount", driver().cuDeviceGetCount()))


def attribute(number: int, ordinal: int = 0) -> int:
    """Returns a CUdevice_attribute of the device at `ordinal` of those visible."""
    start()
    module = driver()
    kind = module.CUdevice_attribute(number)
    what = f"attribute {number} of device {ordinal}"
    return int(checked(what, module.cuDeviceGetAttribute(kind, device(ordinal))))


def sm_count(ordinal: int = 0) -> int:
    """Returns the SMs this process may use of a device: under MPS cut by its share."""
    return attribute(SM_COUNT, ordinal)


def mps_enabled(ordinal: int = 0) -> bool:
    """Tells whether this process is a client of an MPS server."""
    return bool(attribute(MPS_ENABLED, ordinal))


def device_uuid(ordinal: int = 0) -> str:
    """Returns a device's UUID, of a MIG device the MIG UUID, without NVML's prefix."""
    start()
    given = checked(f"UUID of device {ordinal}", driver().cuDeviceGetUuid(device(ordinal)))
    return str(uuids.UUID(bytes=bytes(given.bytes)))


def total_mem_bytes(ordinal: int = 0) -> int:
    """Returns the memory of a device, as this process is told."""
    start()
    what = f"memory of device {ordinal}"
    return int(checked(what, driver().cuDeviceTotalMem(device(ordinal))))


def graph_mem_high_bytes(ordinal: int = 0) -> int:
    """Returns the most that allocations within CUDA graphs of this process have taken of a device.

    They come from memory of the driver's own, which no pool counts (cudaMallocAsync in a capture).
    """
    start()
    module = driver()
    what = module.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH
    given = module.cuDeviceGetGraphMemAttribute(device(ordinal), what)
    return int(checked(f"memory of graphs on device {ordinal}", given))


def device(ordinal: int = 0) -> Any:
    """Returns the driver's handle (CUdevice) of the device at `ordinal` of those visible."""
    start()
    return checked(f"device {ordinal}", driver().cuDeviceGet(ordinal))
