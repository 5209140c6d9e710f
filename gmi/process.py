"""Makes the slices of a run's GMIs and starts their processes: one each, or one a device."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gmi_drl import runtime
from gmi_drl.runtime import ActorHandle, ObjectRef

from . import lease
from .backends.backend import Slices, backend_of, take_slice
from .threads import ThreadHost

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec, Layout

Arguments = Callable[["GmiSpec"], Sequence[Any]]


class LayoutSlices:
    """Makes the slices of a layout, and releases them when it is closed, whatever happens.

    `gmis`: those of its GMIs that are on this machine; None: all.

    Before, it undoes what killed launchers of this user left, and warns of what it cannot undo.
    """

    def __init__(self, layout: Layout, gmis: Sequence[GmiSpec] | None = None) -> None:
        gmis = layout.gmis if gmis is None else gmis
        self._by_backend: dict[str, Slices] = {}
        for swept in lease.sweep():
            if swept.error:
                warnings.warn(f"{swept.lease.directory}: {swept.error}", stacklevel=2)
        try:
            for name in dict.fromkeys(gmi.backend for gmi in gmis):
                specs = [gmi for gmi in gmis if gmi.backend == name]
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
            if alive := [(spec, pid) for spec, pid in gmis if spec.backend == name]:
                slices.fence_all(alive)

    def release(self) -> None:
        """Releases all slices, also after one has failed; raises the first failure."""
        with contextlib.ExitStack() as stack:
            while self._by_backend:
                stack.callback(self._by_backend.popitem()[1].release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class GmiProcess:
    """The actor of one GMI, or of several as threads. `death` is ready when it has ended."""

    def __init__(self, specs: Sequence[GmiSpec], handle: ActorHandle) -> None:
        self.gmi_ids = tuple(spec.gmi_id for spec in specs)
        self.handle = handle
        self.death = runtime.death(handle)  # its final death, after all restarts

    def call(
        self, gmi_id: int, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
    ) -> ObjectRef:
        """Calls a method of the body of one GMI; returns at once."""
        if len(self.gmi_ids) == 1:
            ref: ObjectRef = getattr(self.handle, method).remote(*args, **kwargs)
        else:
            ref = self.handle.call.remote(gmi_id, method, tuple(args), dict(kwargs))
        return ref

    def records(self) -> list[tuple[int, Any]]:
        """Returns the (gmi_id, record) since the last call; without a label, of the first GMI."""
        return [
            (one.label, one.record) if isinstance(one, runtime.Labelled) else (self.gmi_ids[0], one)
            for one in runtime.records(self.handle)
        ]


def grouped(layout: Layout, gmi_ids: Collection[int]) -> list[tuple[GmiSpec, ...]]:
    """Groups these GMIs by process, in the order of the lowest id of each."""
    specs = [spec for spec in layout.gmis if spec.gmi_id in gmi_ids]
    threads = {name: backend_of(name).gmis_are_threads for name in {spec.backend for spec in specs}}

    def place(spec: GmiSpec) -> tuple[int, str, int]:
        return (spec.gpu_id, spec.backend, -1 if threads[spec.backend] else spec.gmi_id)

    groups = itertools.groupby(sorted(specs, key=place), place)
    return sorted((tuple(group) for _, group in groups), key=lambda group: group[0].gmi_id)


def start_process(
    specs: Sequence[GmiSpec], layout: Layout, slices: LayoutSlices, body: type,
    arguments: Arguments, *, name: str = "gmi", logs: Path | None = None,
    env: Mapping[str, str] | None = None, max_restarts: int = 0,
) -> GmiProcess:  # fmt: skip
    """Starts an actor of class `body` for a GMI, or one with a thread and a `body` for each.

    `specs` as `grouped` gives them. The log of a process is its first GMI's; the others link to it.
    """
    first, device = specs[0], layout.topology.devices[specs[0].gpu_id]
    options: dict[str, Any] = {
        "name": name + "+".join(str(spec.gmi_id) for spec in specs),
        "env": _environment(specs, slices) | dict(env or {}),
        "cores": _cores(specs),
        "log": None if logs is None else logs / f"{name}{first.gmi_id}.log",
        "max_restarts": max_restarts,
    }
    if len(specs) == 1:
        options["setup"] = functools.partial(take_slice, first, device)
        actor: runtime.RemoteClass[Any] = runtime.remote(body)
        return GmiProcess(specs, actor.options(**options).remote(*arguments(first)))
    for spec in specs[1:]:
        if logs is not None:
            with contextlib.suppress(FileExistsError):  # made before the run was resumed
                (logs / f"{name}{spec.gmi_id}.log").symlink_to(f"{name}{first.gmi_id}.log")
    actor = runtime.remote(ThreadHost)
    members = [(spec, tuple(arguments(spec))) for spec in specs]
    handle = actor.options(**options, max_concurrency=len(specs)).remote(body, members, device)
    return GmiProcess(specs, handle)


def _cores(specs: Sequence[GmiSpec]) -> tuple[int, ...]:
    return tuple(sorted({core for spec in specs for core in spec.cores}))


def _environment(specs: Sequence[GmiSpec], slices: LayoutSlices) -> dict[str, str]:
    """Merges the variables of slices; the first one's win where they differ (thread counts)."""
    variables: dict[str, str] = {}
    for spec in reversed(specs):
        variables |= slices.environment(spec)
    return variables
