"""One process of a measurement of links; `measure` starts one for each GMI."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.comm.errors import CommError
from gmi_drl.comm.reducers.group_spec import GroupSpec

from .links import LinkKind

if TYPE_CHECKING:
    from torch import Tensor

SIZES: Final = (16 << 10, 128 << 10, 512 << 10, 2 << 20)  # bytes; policies have 0.2 to 3 MB
_PASSES: Final = 5
_REPEATS: Final = 8  # in each pass
_WARM: Final = 2  # before them, not counted
_STEP: Final = timedelta(seconds=20)  # for one step: 2 MiB take milliseconds

Spans = list[tuple[float, float]]  # (begin, end) of each repetition, seconds
StageSize = tuple[int, int]  # (index of the stage, index of the size)
Step = tuple["Tensor", Callable[[], Any]]  # where a rank's vector goes, and the primitive


@dataclass(frozen=True)
class StagePart:
    """What one GMI does in one stage: as `rank` of a group of its own."""

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
        """The spans of each (stage, size) that this rank takes part in."""
        import torch

        steps: dict[StageSize, Step | None] = {}
        for stage, part in enumerate(self._parts):
            make = None if part is None else self._maker(part)
            for size, nbytes in enumerate(SIZES):
                steps[stage, size] = None if make is None else make(nbytes // 4)
        fresh = torch.randn(max(SIZES) // 4, device=self._device)
        spans: dict[StageSize, Spans] = {place: [] for place, step in steps.items() if step}
        for _ in range(_PASSES):
            for place, step in steps.items():
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
                        spans[place].append((begin, time.monotonic()))
        self._everyone.barrier()  # nobody leaves a group that another is still in
        return spans

    def _maker(self, part: StagePart) -> Callable[[int], Step]:
        """Makes the step of one part for a number of float32. Joins its group: collective."""
        import torch

        group = part.group.join(part.rank, _STEP)

        def in_a_bucket(numel: int) -> Step:
            bucket = group.bucket(str(numel), numel, torch.float32, self._device)
            return bucket.buffer, lambda: bucket.reduce("sum")

        if part.kind != "ring_bcast":
            return in_a_bucket
        from gmi_drl.comm.reducers.mrr import rings_of
        from gmi_drl.comm.reducers.shared_group import SharedGroup

        assert isinstance(group, SharedGroup)
        rings = group.rings(self._device.type, rings_of(group.mpl))
        ring = rings.get("ring0")
        assert ring is not None

        def round_the_ring(numel: int) -> Step:
            vector = torch.zeros(numel, device=self._device)

            def call() -> None:
                if fault := rings.attempt(lambda: ring.broadcast(vector, 0)):
                    raise CommError(f"a ring of {group.size} broke: {fault}")

            return vector, call

        return round_the_ring

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            import torch

            torch.cuda.current_stream().synchronize()  # not what other threads do there
