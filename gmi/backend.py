"""What every way of slicing a device has to offer, and the table of those there are."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, Protocol

from .errors import GmiError

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec


class Backend(Protocol):
    """One way of giving a process its share of a device. A module with these three functions."""

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """Variables the process must have before it imports anything."""

    def enter(self, spec: GmiSpec) -> None:
        """In the GMI's process, before its role is built: takes the slice."""

    def verify(self, spec: GmiSpec) -> None:
        """In the GMI's process: SliceError unless it has the slice the spec says."""


_MODULES: Final = {"cpu": ".cpu", "direct": ".direct"}


def backend_of(name: str) -> Backend:
    """The backend called `name`; GmiError names the known ones."""
    if name not in _MODULES:
        raise GmiError(f"backend={name!r}; there is {', '.join(_MODULES)}. Choose one of them.")
    module: Backend = importlib.import_module(_MODULES[name], __package__)
    return module


def take_slice(spec: GmiSpec) -> None:
    """In the GMI's process: enters the slice and verifies it."""
    backend = backend_of(spec.backend)
    backend.enter(spec)
    backend.verify(spec)
