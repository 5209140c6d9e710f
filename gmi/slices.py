"""Makes the slices of all GMIs of a layout together, on whichever backends, and releases them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from . import lease
from .backends.backend import Slices, backend_of

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec, Layout


class LayoutSlices:
    """Makes the slices of `layout`, and releases them when it is closed, whatever happens.

    Undoes before what killed launchers of this user left, and warns of what could not be.
    """

    def __init__(self, layout: Layout) -> None:
        self._by_backend: dict[str, Slices] = {}
        for swept in lease.sweep():
            if swept.error:
                warnings.warn(f"{swept.lease.directory}: {swept.error}", stacklevel=2)
        try:
            for name in dict.fromkeys(gmi.backend for gmi in layout.gmis):
                specs = [gmi for gmi in layout.gmis if gmi.backend == name]
                self._by_backend[name] = backend_of(name).prepare(specs, layout.topology)
        except BaseException:
            self.release()
            raise

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """Does as `Slices` says."""
        return self._by_backend[spec.backend].environment(spec)

    def fence_all(self, living: Iterable[tuple[GmiSpec, int]]) -> None:
        """Does as `Slices` says."""
        gmis = list(living)
        for name, slices in self._by_backend.items():
            if own := [(spec, pid) for spec, pid in gmis if spec.backend == name]:
                slices.fence_all(own)

    def release(self) -> None:
        """Gives back everything, also what comes after one that fails; raises the first failure."""
        with contextlib.ExitStack() as stack:
            while self._by_backend:
                stack.callback(self._by_backend.popitem()[1].release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
