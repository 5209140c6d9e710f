"""Measures links: the primitives of a layout's reductions, among processes as its GMIs will be.

A process on its slice stands for every GMI. All meet, then a stage's groups run it side by side:
timed from the last rank's begin to the last one's end. Passes take stages and sizes in turn, so
that a disturbance does not fall on one alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl import runtime
from gmi_drl.comm.errors import CommError, listed
from gmi_drl.comm.links.links import Link, LinkKey, LinkKind, fit
from gmi_drl.comm.reducers.group_spec import GroupSpec, create_group
from gmi_drl.gmi import GmiError, LayoutSlices
from gmi_drl.gmi.process import GmiProcess, grouped, start_process
from gmi_drl.placement.layout import GmiSpec, Layout

from .project import ReductionStage

if TYPE_CHECKING:
    from torch import Tensor


SIZES: Final = (16 << 10, 128 << 10, 512 << 10, 2 << 20)  # bytes; policies have 0.2 to 3 MB
_PASSES: Final = 5
_REPEATS: Final = 8  # in each pass
_WARM: Final = 2  # before them, not counted
_STEP: Final = timedelta(seconds=20)  # for one step: 2 MiB take milliseconds

Spans = list[tuple[float, float]]  # (begin, end) of each repetition, seconds
StageSize = tuple[int, int]  # (index of the stage, index of the size)
Primitive = tuple["Tensor", Callable[[], Any]]  # where a rank's vector goes, and the primitive


@dataclass(frozen=True)
class StagePart:
    """The part of one GMI in one stage: as `rank` of a group of its own."""

    kind: LinkKind
    group: GroupSpec
    rank: int


class LinkMeasurement:
    """The actor that stands for one GMI. `parts` by stage; None where it takes no part."""

    def __init__(
        self, everyone: GroupSpec, rank: int, parts: Sequence[StagePart | None], on_gpu: bool
    ) -> None:
        import torch

        self._everyone = everyone.join(rank, _STEP)
        self._parts = parts
        self._device = torch.device("cuda" if on_gpu else "cpu")

    def run(self) -> dict[StageSize, Spans]:
        """Returns the spans of each (stage, size) that this rank takes part in."""
        import torch

        steps: dict[StageSize, Primitive | None] = {}
        for stage, part in enumerate(self._parts):
            make = None if part is None else self._maker(part)
            for size, nbytes in enumerate(SIZES):
                steps[stage, size] = None if make is None else make(nbytes // 4)
        fresh = torch.randn(max(SIZES) // 4, device=self._device)
        spans: dict[StageSize, Spans] = {key: [] for key, step in steps.items() if step}
        for _ in range(_PASSES):
            for key, step in steps.items():
                for repeat in range(-_WARM, _REPEATS):
                    if step is None:
                        self._everyone.barrier()
                        continue
                    vector, call = step
                    vector.copy_(fresh[: vector.numel()])
                    self._synchronize()
                    self._everyone.barrier()
                    begin = time.monotonic()
                    call()
                    self._synchronize()
                    if repeat >= 0:
                        spans[key].append((begin, time.monotonic()))
        self._everyone.barrier()  # nobody leaves a group that another is still in
        return spans

    def _maker(self, part: StagePart) -> Callable[[int], Primitive]:
        """Makes the step of one part for a number of float32. Joins its group: collective."""
        import torch

        group = part.group.join(part.rank, _STEP)

        def reduce_in_bucket(numel: int) -> Primitive:
            bucket = group.bucket(str(numel), numel, torch.float32, self._device)
            return bucket.buffer, lambda: bucket.reduce("sum")

        if part.kind != "ring_bcast":
            return reduce_in_bucket
        from gmi_drl.comm.reducers.mrr import rings_of
        from gmi_drl.comm.reducers.shared_group import SharedGroup

        assert isinstance(group, SharedGroup)
        rings = group.rings(self._device.type, rings_of(group.mpl))
        ring = rings.get("ring0")
        assert ring is not None

        def broadcast_in_ring(numel: int) -> Primitive:
            vector = torch.zeros(numel, device=self._device)

            def call() -> None:
                if fault := rings.attempt(lambda: ring.broadcast(vector, 0)):
                    raise CommError(f"a ring of {group.size} broke: {fault}")

            return vector, call

        return broadcast_in_ring

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            import torch

            torch.cuda.current_stream().synchronize()  # not what other threads do there


DEADLINE: Final = timedelta(seconds=120)  # with the start of all processes
PRELOAD: Final = ("numpy", "torch", "torch.distributed", "gmi_drl.comm.reducers.mrr")


def measure(
    stages: Mapping[LinkKey, ReductionStage], layout: Layout, deadline: timedelta = DEADLINE
) -> dict[LinkKey, Link]:
    """Measures the link of each stage, in seconds; CommError if not done by the deadline.

    Uses the runtime of this process, or one of its own until it returns.
    """
    owns_runtime = not runtime.is_initialized()
    if owns_runtime:
        runtime.init(PRELOAD)
    try:
        with tempfile.TemporaryDirectory(dir=runtime.run_directory()) as folder:
            spans = _run(stages, layout, Path(folder), deadline)
    except (runtime.ActorRuntimeError, GmiError) as error:
        raise CommError(f"links could not be measured: {error}") from error
    finally:
        if owns_runtime:
            runtime.shutdown()
    return {
        key: fit(
            [
                (nbytes, latencies([rank[index, size] for rank in spans if (index, size) in rank]))
                for size, nbytes in enumerate(SIZES)
            ]
        )
        for index, key in enumerate(stages)
    }


def latencies(ranks: Sequence[Spans]) -> list[float]:
    """Returns each repetition's time, from the last rank's begin to the last one's end."""
    return [
        max(end for _, end in spans) - max(begin for begin, _ in spans)
        for spans in zip(*ranks, strict=True)
    ]


def _run(
    stages: Mapping[LinkKey, ReductionStage], layout: Layout, folder: Path, deadline: timedelta
) -> list[dict[StageSize, Spans]]:
    """Starts the ranks, and returns the spans of each."""
    groups = [group for stage in stages.values() for group in stage.groups]
    gmis = sorted({gmi_id for group in groups for gmi_id in group})
    everyone = create_group([f"gmi {gmi_id}" for gmi_id in gmis])
    parts = _parts(stages, gmis, folder)
    ranks = {gmi_id: rank for rank, gmi_id in enumerate(gmis)}
    processes: list[GmiProcess] = []

    def arguments(spec: GmiSpec) -> tuple[Any, ...]:
        on_gpu = layout.topology.devices[spec.gpu_id].kind == "gpu"
        return everyone, ranks[spec.gmi_id], parts[spec.gmi_id], on_gpu

    with LayoutSlices(layout) as slices:
        try:
            for specs in grouped(layout, gmis):
                processes.append(
                    start_process(specs, layout, slices, LinkMeasurement, arguments, name="link")
                )
            by_gmi = {gmi_id: process for process in processes for gmi_id in process.gmi_ids}
            refs = [by_gmi[gmi_id].call(gmi_id, "run") for gmi_id in gmis]
            _until_done(dict(zip(refs, everyone.members, strict=True)), deadline)
            spans: list[dict[StageSize, Spans]] = runtime.get(refs)
            return spans
        finally:
            try:
                slices.fence_all(_living(processes, layout))
            finally:
                runtime.kill([process.handle for process in processes])


def _living(processes: Sequence[GmiProcess], layout: Layout) -> Iterator[tuple[GmiSpec, int]]:
    """Yields the GMIs whose process has not ended, with its pid."""
    specs = {spec.gmi_id: spec for spec in layout.gmis}
    for process in processes:
        pid = runtime.process_id(process.handle)
        if pid is not None and not process.death.slot.done:
            yield from ((specs[gmi_id], pid) for gmi_id in process.gmi_ids)


def _until_done(names: Mapping[runtime.ObjectRef, str], deadline: timedelta) -> None:
    """Returns when all have answered; raises what the first one raises, as others wait for it."""
    limit_s = deadline.total_seconds()
    end_s = time.monotonic() + limit_s
    pending = list(names)
    while pending:
        ready, pending = runtime.wait(pending, 1, max(0.0, end_s - time.monotonic()))
        if not ready:
            late = listed([names[ref] for ref in pending])
            raise CommError(
                f"links could not be measured within {limit_s:g} s: {late} did not answer. "
                "Measure when the machine does less else: gmi-drl plan --measure."
            )
        runtime.get(ready, 0)


def _parts(
    stages: Mapping[LinkKey, ReductionStage], gmis: Sequence[int], folder: Path
) -> dict[int, list[StagePart | None]]:
    """Returns what each GMI does in each stage; None where it only watches.

    A ring is MRR with one GMI on each device: one ring, with all that belongs to using it.
    """
    parts: dict[int, list[StagePart | None]] = {gmi_id: [None] * len(stages) for gmi_id in gmis}
    for number, (key, stage) in enumerate(stages.items()):
        for ids in stage.groups:
            ring = stage.kind in ("ring", "ring_bcast")
            group = create_group(
                [f"gmi {gmi_id}" for gmi_id in ids], range(len(ids)) if ring else None,
                strategy="mrr" if ring else "ipc" if stage.kind == "ipc" else "mpr", wire=key.wire,
                directory=folder,
            )  # fmt: skip
            for rank, gmi_id in enumerate(ids):
                parts[gmi_id][number] = StagePart(stage.kind, group, rank)
    return parts
