"""Defines what every backend offers, and says which of them cannot be used on this machine.

It checks only files and numbers; `gmi-drl doctor` tries what only a trial can show.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from gmi_drl.gmi.errors import GmiError
from gmi_drl.placement.faults import install
from gmi_drl.placement.topology import Device, Topology

if TYPE_CHECKING:
    from gmi_drl.gmi.lease import LeaseNotes
    from gmi_drl.placement.layout import GmiSpec

# Name -> module:class. A new backend is a file or a folder, and a line here.
_ON_CORES: Final = {"cpu": ".cpu:CpuBackend"}
_ON_GPUS: Final = {
    "direct": ".direct:DirectBackend",
    "mps": ".mps:MpsBackend",
    "mig": ".mig:MigBackend",
    "green": ".green:GreenBackend",
}
CORE_BACKENDS: Final = tuple(_ON_CORES)
GPU_BACKENDS: Final = tuple(_ON_GPUS)
BACKENDS: Final = _ON_CORES | _ON_GPUS
# gVisor answers uname(2) with this version, whatever it runs on.
_GVISOR: Final = "#1 SMP Sun Jan 10 15:06:54 PST 2016"


@dataclass(frozen=True)
class System:
    """Describes the software of a machine, as far as backends depend on it."""

    cuda: tuple[int, int] | None = None  # the newest that the driver can run; None: not known
    missing_programs: tuple[str, ...] = ()  # that backends need
    bindings: bool = True  # package cuda-bindings
    sandbox: str = ""  # its kind, where MPS is not known to work


class Slices:
    """Holds the slices of some GMIs of a run in the launcher, made and ready to be entered.

    This base is for backends that make nothing, and only set the environment.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """Returns the variables that a GMI's process must have before it imports anything."""
        return self._backend.environment(spec)

    def fence_all(self, living: Sequence[tuple[GmiSpec, int]]) -> None:
        """Detaches GMIs, each with its pid, from what they share before they are killed.

        It takes at most three seconds for all of them, and never raises.
        """

    def release(self) -> None:
        """Releases what was made, once no GMI is left. Calling it again is fine."""


class Backend(ABC):
    """One way of giving a process its share of a device; this base makes nothing beforehand."""

    gmis_are_threads: ClassVar[bool] = False  # those of a device are threads of one process
    faults_spread: ClassVar[bool] = False  # a fatal GPU fault in one GMI ends all on that device
    kill_can_wedge: ClassVar[bool] = False  # a process killed at work can leave others stuck
    torch_limits_memory: ClassVar[bool] = False  # nothing else holds a GMI to its share of memory
    uses_mig: ClassVar[bool] = False  # for GPUs that are cut by MIG, and for no others
    trial_gmis: ClassVar[int] = 1  # GMIs of each GPU when it is tried; two where it shares GPUs
    summary: ClassVar[str] = ""  # for `gmi-drl doctor`, where there is nothing to try

    def prepare(self, gmis: Sequence[GmiSpec], topology: Topology) -> Slices:
        """Makes the slices, in the launcher. Before it raises it undoes what it has made."""
        return Slices(self)

    @abstractmethod
    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """Returns the variables of a GMI's process, where they follow from its spec."""

    @abstractmethod
    def enter(self, spec: GmiSpec, device: Device) -> None:
        """Takes the slice, in the GMI's process and thread, before its role is built."""

    @abstractmethod
    def verify(self, spec: GmiSpec, device: Device) -> None:
        """Raises SliceError, in the GMI's process, unless it has the slice of the spec."""

    def sm_count(self) -> int:
        """Returns the SMs that CUDA reports to the GMI, after `enter`; 0 without a GPU."""
        return 0

    def undo(self, lease: LeaseNotes) -> bool:
        """Undoes the steps that a killed launcher has noted; returns whether any had been taken."""
        return False

    def why_not_on(self, device: Device, allow_create: bool = False) -> str:
        """Says why it cannot be used on this GPU, or nothing. `allow_create`: MIG instances."""
        return ""

    def why_not_here(self, system: System) -> str:
        """Says why it cannot be used on a machine with this software, or nothing."""
        return ""

    def missing_programs(self) -> list[str]:
        """Lists the programs that it needs and that are not installed."""
        return []

    def idle_part(self, topology: Topology) -> tuple[Topology, list[int]]:
        """Returns the topology without what others use, and the GPUs of which nothing is left."""
        return topology, []


@functools.cache
def backend_of(name: str) -> Backend:
    """Returns the backend called `name`; GmiError names the known ones."""
    if name not in BACKENDS:
        raise GmiError(f"backend={name!r}; there is {', '.join(BACKENDS)}. Choose one of them.")
    module, _, class_name = BACKENDS[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module, __package__), class_name)()
    return backend


def take_slice(spec: GmiSpec, device: Device) -> None:
    """Enters the slice in the GMI's process, and verifies it."""
    backend = backend_of(spec.backend)
    backend.enter(spec, device)
    backend.verify(spec, device)


def this_system(cuda: tuple[int, int] | None) -> System:
    """Describes the software of this machine; `cuda` is the version that NVML reports."""
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
    """Returns (backend, reason) for each backend that works on none of these GPUs."""
    reasons = {name: _why_not(name, devices, system, allow_create) for name in GPU_BACKENDS}
    return tuple((name, why) for name, why in reasons.items() if why)


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
