"""A GMI: a process with a slice of a device. Backends give the slice, the gang runs them all."""

from .backend import Backend, backend_of
from .discover import discover
from .errors import DiscoveryError, GmiDied, GmiError, GmiTimeout, SliceError
from .gang import PRELOAD, Gang, GmiState

__all__ = [
    "PRELOAD",
    "Backend",
    "DiscoveryError",
    "Gang",
    "GmiDied",
    "GmiError",
    "GmiState",
    "GmiTimeout",
    "SliceError",
    "backend_of",
    "discover",
]
