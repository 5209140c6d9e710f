"""A GMI is a process with a slice of a device: backends give the slice, the gang runs them all."""

from .backends.backend import Backend, Slices, backend_of
from .discover import discover
from .errors import DeviceMemoryError, DiscoveryError, GmiDied, GmiError, GmiTimeout, SliceError
from .faults import DEVICE_FAULT, DEVICE_LOST, leave_if_faulted
from .gang import PRELOAD, Gang
from .process import LayoutSlices

__all__ = [
    "DEVICE_FAULT", "DEVICE_LOST", "PRELOAD", "Backend", "DeviceMemoryError", "DiscoveryError",
    "Gang", "GmiDied", "GmiError", "GmiTimeout", "LayoutSlices", "SliceError", "Slices",
    "backend_of", "discover", "leave_if_faulted",
]  # fmt: skip
