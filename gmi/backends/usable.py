"""Which backends cannot be used on this machine at all, and why: capability, not hope.

Cheap: files and numbers are looked at; neither CUDA nor a daemon is started. What only a trial can
show (a daemon that does not start) `gmi-drl doctor` tries.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gmi_drl.placement.extras import install
from gmi_drl.placement.topology import Device

from .mps.control import IN_CONTAINERS, missing_programs

GPU_BACKENDS: Final = ("direct", "mps", "mig", "green")
_VOLTA: Final = (7, 0)  # before it MPS limits nothing, and isolates no fault (MPS guide)
# CUDA 12.4 brought green contexts, 12.5 their streams (cuGreenCtxStreamCreate); what the extra
# installs (cuda-bindings, cupy) is of 13, and so is what was tested.
_GREEN_CUDA: Final = (13, 0)
# gVisor answers uname(2) with this version, whatever it runs on.
_GVISOR: Final = "#1 SMP Sun Jan 10 15:06:54 PST 2016"


@dataclass(frozen=True)
class System:
    """What of the machine beside its GPUs decides."""

    cuda: tuple[int, int] | None = None  # the newest that the driver can run; None: not known
    missing_mps: tuple[str, ...] = ()  # programs of MPS that are not there
    bindings: bool = True  # package cuda-bindings
    sandbox: str = ""  # what kind, where MPS is not known to work in it


def this_system(cuda: tuple[int, int] | None) -> System:
    """Of the machine this process is on; the driver's `cuda` is NVML's to say."""
    return System(
        cuda,
        tuple(missing_programs()),
        has_bindings(),
        _sandbox(),
    )


def has_bindings() -> bool:
    """Whether cuda-bindings can be imported; does not import it."""
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ImportError:
        return False


def unusable(
    devices: Sequence[Device], system: System, allow_create: bool = False
) -> tuple[tuple[str, str], ...]:
    """(backend, why) of each that no GPU here can be used with. Pure.

    `allow_create`: a run may make the MIG instances that it needs.
    """
    found = []
    for backend in GPU_BACKENDS:
        reasons = (
            *_every(devices, backend, system, allow_create),
            *_no_bindings(system),
            *_OF[backend](system),
        )
        if reasons:
            found.append((backend, reasons[0]))
    return tuple(found)


def _every(
    devices: Sequence[Device], backend: str, system: System, allow_create: bool
) -> Iterator[str]:
    """What stands against a backend on every GPU, if something does."""
    reasons = [why_not_on(device, backend, allow_create) for device in devices]
    if all(reasons):
        yield reasons[0]


def why_not_on(device: Device, backend: str, allow_create: bool = False) -> str:
    """Why a backend cannot be used on this GPU, or nothing."""
    gpu = f"GPU {device.index} ({device.name})"
    if device.compute_mode == "prohibited":
        return f"{gpu} has compute mode prohibited; nvidia-smi -c 0 (as root) changes it"
    if backend == "mig":
        if device.mig_mode is None:
            return f"{gpu} is of a kind without MIG"
        if device.mig or allow_create:
            return ""
        mode = "MIG mode is on" if device.mig_mode else "MIG mode is off"
        return f"{gpu} has no MIG instance ({mode}); hardware.allow_create: true makes them"
    if device.mig_mode:
        return f"{gpu} is cut by MIG, and as a whole it is not seen; use mig, or turn MIG off"
    if backend == "mps" and device.capability is not None and device.capability < _VOLTA:
        shown = ".".join(map(str, device.capability))
        return f"{gpu} has compute capability {shown}, and MPS limits SMs from 7.0 on"
    return ""


def _no_bindings(system: System) -> Iterator[str]:
    if not system.bindings:  # every GMI on a GPU verifies its slice with it
        yield f"cuda-bindings is not installed; {install('cuda')}"


def _no_mps(system: System) -> Iterator[str]:
    if system.missing_mps:
        names = " and ".join(system.missing_mps)
        be = "is" if len(system.missing_mps) == 1 else "are"
        yield (
            f"{names} {be} not on PATH, nor in {IN_CONTAINERS}; they come with the driver's "
            "compute utilities, and have to be let into a container "
            "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        )
    if system.sandbox:
        yield f"MPS is not known to work in {system.sandbox}"


def _no_green(system: System) -> Iterator[str]:
    if system.cuda is not None and system.cuda < _GREEN_CUDA:
        yield (
            f"the driver runs CUDA {'.'.join(map(str, system.cuda))}, and green contexts are used "
            f"from {'.'.join(map(str, _GREEN_CUDA))} on; update the driver"
        )


def _nothing(system: System) -> tuple[str, ...]:
    return ()


_OF: Final = {"direct": _nothing, "mps": _no_mps, "mig": _nothing, "green": _no_green}


def _sandbox() -> str:
    return "gVisor" if os.uname().version == _GVISOR else ""
