"""Defines what every backend offers, and tables those that exist."""

from __future__ import annotations

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from gmi_drl.gmi.errors import GmiError

if TYPE_CHECKING:
    from gmi_drl.gmi.lease import LeaseNotes
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device, Topology

    from .usable import System

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


class Slices(Protocol):
    """The slices of some GMIs of a run, in the launcher: made and ready to be entered."""

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """Returns the variables that a GMI's process must have before it imports anything."""

    def fence_all(self, living: Sequence[tuple[GmiSpec, int]]) -> None:
        """Detaches processes that may be at work from what they share, before they are killed.

        Each GMI with its pid. What it cannot do in three seconds, for all of them, it leaves; it
        never raises.
        """

    def release(self) -> None:
        """Gives back what was made, when no GMI is left. Calling it again is fine."""


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
        """Makes the slices, in the launcher. What it raises it has undone."""
        return PlainSlices(self)

    @abstractmethod
    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """Returns the variables of a GMI's process, where they follow from its spec."""

    @abstractmethod
    def enter(self, spec: GmiSpec, device: Device) -> None:
        """Takes the slice, in the GMI's process and thread, before its role is built."""

    @abstractmethod
    def verify(self, spec: GmiSpec, device: Device) -> None:
        """Raises SliceError there unless it has the slice the spec says."""

    def sm_count(self) -> int:
        """Returns the SMs that CUDA says the GMI has, after `enter`; 0 where it is no GPU's."""
        return 0

    def undo(self, lease: LeaseNotes) -> bool:
        """Undoes what the notes of a killed launcher say; whether there was anything to undo.

        GmiError if it could not. Steps that were noted may not have been taken.
        """
        return False

    def why_not_on(self, device: Device, allow_create: bool = False) -> str:
        """Says why it cannot be used on this GPU, or nothing.

        `allow_create`: a run may make the MIG instances that it needs.
        """
        return ""

    def why_not_here(self, system: System) -> str:
        """Says why it cannot be used on a machine with this software, or nothing. Pure."""
        return ""

    def missing_programs(self) -> list[str]:
        """Lists the programs that it needs and that are not installed."""
        return []

    def idle_part(self, topology: Topology) -> tuple[Topology, list[int]]:
        """Returns the topology without what others use, and the GPUs of which nothing is left."""
        return topology, []


class PlainSlices:
    """The slices of a backend with nothing to make: all is in the environment."""

    def __init__(self, backend: Backend) -> None:
        self.environment = backend.environment

    def fence_all(self, living: Sequence[tuple[GmiSpec, int]]) -> None:
        """Does nothing: the end of the process is the end of its share."""

    def release(self) -> None:
        """Does nothing."""


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
