"""What NVML says about how GPUs reach each other, and which are cut into MIG instances.

Asked in a launcher: nothing here starts CUDA. Written from the documentation and tested with a fake
driver: not yet run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .errors import DiscoveryError

_P2P_READ: Final = 0  # nvidia-ml-py 12 and 13 have the tuple (0,) as NVML_P2P_CAPS_INDEX_READ


@dataclass(frozen=True)
class GpuLinks:
    """By the place of a GPU in what was asked for."""

    mig: tuple[bool, ...]  # cut into MIG instances
    peers: tuple[tuple[bool, ...], ...]  # [i][j]: i reads the memory of j without the host


def gpu_links(uuids: Sequence[str]) -> GpuLinks:
    """MIG modes and peer access of these GPUs; DiscoveryError if the driver does not answer.

    What the driver cannot say counts as no.
    """
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        raise DiscoveryError("nvidia-ml-py is not installed. pip install nvidia-ml-py.") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DiscoveryError(f"NVML: {error}. Check that nvidia-smi works.") from error
    try:
        handles = [_handle(pynvml, uuid) for uuid in uuids]
        return GpuLinks(
            tuple(_is_mig(pynvml, handle) for handle in handles),
            tuple(tuple(a is b or _reaches(pynvml, a, b) for b in handles) for a in handles),
        )
    finally:
        pynvml.nvmlShutdown()


def _handle(nvml: Any, uuid: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError as error:
        raise DiscoveryError(f"GPU {uuid}: {error}. Check that nvidia-smi -L lists it.") from error


def _is_mig(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # not of a kind that has MIG
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _reaches(nvml: Any, handle: Any, other: Any) -> bool:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(handle, other, _P2P_READ)
    except nvml.NVMLError:
        return False
    return bool(status == nvml.NVML_P2P_STATUS_OK)
