"""What this machine has: its GPUs by NVML, or groups of its cores when there is none."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Final

from gmi_drl.placement.topology import Device, Topology, share

from .errors import DiscoveryError

# CUDA cores per SM, by compute capability (CUDA C programming guide, "Compute Capabilities").
_CORES_PER_SM_64: Final = {(7, 0), (7, 2), (7, 5), (8, 0)}
_CORES_PER_SM: Final = 128  # 8.6, 8.7, 8.9 and everything from 9.0 on


def discover(
    num_gpus: int | None = None, backend: str = "auto", cores: Sequence[int] | None = None
) -> Topology:
    """The devices to use. `num_gpus` None: all GPUs, or one group of cores.

    `backend` auto takes GPUs if there are any, cpu never does, any other must have them.
    `cores`: those to use (None: all this process may run on). CUDA_VISIBLE_DEVICES is respected;
    an index in it counts as nvidia-smi does. DiscoveryError says what is missing.
    """
    allowed = _cores(cores)
    if num_gpus is not None and num_gpus < 1:
        raise DiscoveryError(f"hardware.num_gpus={num_gpus}; it must be 1 or more.")
    if backend != "cpu":
        found, why_not = _gpus(allowed)
        if found and num_gpus is not None and num_gpus > len(found):
            raise DiscoveryError(
                f"hardware.num_gpus={num_gpus}; {len(found)} can be used here"
                f"{f' ({why_not})' if why_not else ''}. Lower it, or use backend cpu."
            )
        if found:
            return Topology(tuple(_with_cores(found[:num_gpus], allowed)))
        if backend != "auto":
            raise DiscoveryError(
                f"hardware.backend={backend}; no GPU can be used here ({why_not}). "
                "Use backend cpu, or auto."
            )
    return Topology.from_cores(allowed, num_gpus or 1)


def _cores(wanted: Sequence[int] | None) -> list[int]:
    here = os.sched_getaffinity(0)
    if wanted is None:
        return sorted(here)
    missing = sorted(set(wanted) - here)
    if missing or not wanted:
        raise DiscoveryError(
            f"hardware.cores={list(wanted)}; this process may use {sorted(here)}. Choose of those."
        )
    return sorted(set(wanted))


def _gpus(allowed: Sequence[int]) -> tuple[list[tuple[Device, set[int]]], str]:
    """GPUs with the cores near each, and why there are not more."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return [], "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], f"NVML: {error}"
    try:
        return _list_gpus(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _list_gpus(nvml: Any) -> tuple[list[tuple[Device, set[int]]], str]:
    found: list[tuple[Device, set[int]]] = []
    problems = []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
            if visible is not None and not _is_visible(visible, index, uuid):
                problems.append(f"GPU {index} is not in CUDA_VISIBLE_DEVICES={visible}")
                continue
            device = Device(
                index=len(found),
                kind="gpu",
                name=str(nvml.nvmlDeviceGetName(handle)),
                cores=(),
                uuid=uuid,
                sm_count=_sm_count(nvml, handle),
                mem_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
            found.append((device, _near(nvml, handle)))
        except nvml.NVMLError as error:
            problems.append(f"GPU {index}: {error}")
    return found, "; ".join(problems) or "the driver lists none"


def _is_visible(visible: str, index: int, uuid: str) -> bool:
    names = [name.strip() for name in visible.split(",")]
    return str(index) in names or any(
        name.startswith("GPU-") and uuid.startswith(name) for name in names
    )


def _sm_count(nvml: Any, handle: Any) -> int | None:
    """NVML counts cores, not SMs; None when it does not say."""
    try:
        capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
        cores = int(nvml.nvmlDeviceGetNumGpuCores(handle))
    except nvml.NVMLError:
        return None
    return cores // (64 if capability in _CORES_PER_SM_64 else _CORES_PER_SM)


def _near(nvml: Any, handle: Any) -> set[int]:
    """The CPU cores on the GPU's side of the machine; empty when NVML does not say."""
    words = (os.cpu_count() or 1) // 64 + 1
    try:
        masks = nvml.nvmlDeviceGetCpuAffinity(handle, words)
    except nvml.NVMLError:
        return set()
    return {
        64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1
    }


def _with_cores(found: list[tuple[Device, set[int]]], allowed: Sequence[int]) -> list[Device]:
    """Each GPU with its share of the cores near it; GPUs with the same cores near share evenly."""
    sides: dict[tuple[int, ...], list[Device]] = {}
    for device, near in found:
        side = tuple(core for core in allowed if core in near) or tuple(allowed)
        sides.setdefault(side, []).append(device)
    devices = []
    for side, members in sides.items():
        for place, device in enumerate(members):
            begin = place * len(side) // len(members)  # with fewer cores than GPUs some share one
            cores = share(side, len(members), place) or side[begin : begin + 1]
            devices.append(dataclasses.replace(device, cores=cores))
    return sorted(devices, key=lambda device: device.index)
