"""What every way of slicing a device has to offer, and the table of those there are."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from gmi_drl.gmi.errors import GmiError

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device, Topology


class Slices(Protocol):
    """In the launcher: the slices of some GMIs of a run, made and ready to be entered."""

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """Variables the process of this GMI must have before it imports anything."""

    def fence_all(self, living: Sequence[tuple[GmiSpec, int]]) -> None:
        """Before processes are killed that may be at work: detach them from what they share.

        Each GMI with its pid. What it cannot do in three seconds, for all of them, it leaves; it
        never raises.
        """

    def release(self) -> None:
        """Give back what was made, when no GMI is left. Calling it again is fine."""


class Backend(Protocol):
    """One way of giving a process its share of a device. A module with these names."""

    THREADS: bool  # the GMIs of a device are threads of one process
    FAULTS_SPREAD: bool  # a fatal fault of the GPU in one GMI ends all on that device
    LET_FINISH: bool  # a process killed at work can leave others on that device stuck

    def prepare(self, gmis: Sequence[GmiSpec], topology: Topology) -> Slices:
        """In the launcher: makes the slices. What it raises it has undone."""

    def enter(self, spec: GmiSpec, device: Device) -> None:
        """In the GMI's process, and thread, before its role is built: takes the slice."""

    def verify(self, spec: GmiSpec, device: Device) -> None:
        """There, too: SliceError unless it has the slice the spec says."""

    def sm_count(self) -> int:
        """There, then: the SMs that CUDA says it has; 0 where it is no GPU's."""


_MODULES: Final = {
    "cpu": ".cpu",
    "direct": ".direct",
    "mps": ".mps.mps",
    "mig": ".mig.mig",
    "green": ".green.green",
}


def backend_of(name: str) -> Backend:
    """The backend called `name`; GmiError names the known ones."""
    if name not in _MODULES:
        raise GmiError(f"backend={name!r}; there is {', '.join(_MODULES)}. Choose one of them.")
    module: Backend = importlib.import_module(_MODULES[name], __package__)
    return module


def take_slice(spec: GmiSpec, device: Device) -> None:
    """In the GMI's process: enters the slice and verifies it."""
    backend = backend_of(spec.backend)
    backend.enter(spec, device)
    backend.verify(spec, device)
