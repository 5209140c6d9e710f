"""Says which backends cannot be used on this machine at all, and why.

Looks at files and numbers alone. What only a trial can show `gmi-drl doctor` tries.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gmi_drl.placement.faults import install
from gmi_drl.placement.topology import Device

from .backend import GPU_BACKENDS, backend_of

# gVisor answers uname(2) with this version, whatever it runs on.
_GVISOR: Final = "#1 SMP Sun Jan 10 15:06:54 PST 2016"


@dataclass(frozen=True)
class System:
    """The software of a machine, as far as backends depend on it."""

    cuda: tuple[int, int] | None = None  # the newest that the driver can run; None: not known
    missing_programs: tuple[str, ...] = ()  # that backends need
    bindings: bool = True  # package cuda-bindings
    sandbox: str = ""  # what kind, where MPS is not known to work in it


def this_system(cuda: tuple[int, int] | None) -> System:
    """Looks at the machine this process is on; the driver's `cuda` is NVML's to say."""
    missing = [name for backend in GPU_BACKENDS for name in backend_of(backend).missing_programs()]
    sandbox = "gVisor" if os.uname().version == _GVISOR else ""
    return System(cuda, tuple(missing), has_bindings(), sandbox)


def has_bindings() -> bool:
    """Tells whether cuda-bindings can be imported; does not import it."""
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ImportError:
        return False


def unusable(
    devices: Sequence[Device], system: System, allow_create: bool = False
) -> tuple[tuple[str, str], ...]:
    """Returns (backend, why) of each that no GPU here can be used with. Pure.

    `allow_create`: a run may make the MIG instances that it needs.
    """
    whys = {name: _why_not(name, devices, system, allow_create) for name in GPU_BACKENDS}
    return tuple((name, why) for name, why in whys.items() if why)


def why_not_on(device: Device, backend: str, allow_create: bool = False) -> str:
    """Says why a backend cannot be used on this GPU, or nothing."""
    if device.compute_mode == "prohibited":
        return (
            f"GPU {device.index} ({device.name}) has compute mode prohibited; "
            "nvidia-smi -c 0 (as root) changes it"
        )
    return backend_of(backend).why_not_on(device, allow_create)


def _why_not(backend: str, devices: Sequence[Device], system: System, allow_create: bool) -> str:
    reasons = [why_not_on(device, backend, allow_create) for device in devices]
    if reasons and all(reasons):
        return reasons[0]
    if not system.bindings:  # every GMI on a GPU verifies its slice with it
        return f"cuda-bindings is not installed; {install('cuda')}"
    return backend_of(backend).why_not_here(system)
