"""Work before and after a meeting of all ranks, captured on a GPU as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gmi_drl.roles.graphs import Graph, Pool
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.roles.telemetry.phases import phase


class Together:
    """Calls `before`, `meet` and `after`; collective.

    With `pool` the first call captures, and waits for the device: `before` and `after` are a graph
    each, or where `alone` (the group has one rank) all three are one. Each does the same work on
    the same memory every time, and `keep` is what is changed that matters later; see Graph.
    `clock` gets what meeting takes as "reduce", and what follows as "train"; where one graph holds
    all three, nothing is "reduce".
    """

    def __init__(
        self,
        before: Callable[[], object],
        meet: Callable[[], object],
        after: Callable[[], object],
        *,
        alone: bool,
        keep: Sequence[Tensor],
        clock: Clock,
        pool: Pool | None,
        name: str,
    ) -> None:
        self._before, self._meet, self._after = before, meet, after
        self._alone, self._keep, self._clock = alone, keep, clock
        self._pool, self._name = pool, name
        self._graphs: tuple[Graph, ...] = ()

    def __call__(self) -> None:
        if self._pool is None:
            self._before()
            meet_timed(self._meet, self._clock)
            self._after()
            return
        if not self._graphs:
            self._graphs = self._captured(self._pool)
        self._graphs[0]()
        if not self._alone:
            meet_timed(self._meet, self._clock)
            self._graphs[1]()

    def close(self) -> None:
        """Let captured work go; waits for what is queued."""
        for graph in self._graphs:
            graph.close()
        self._graphs = ()

    def _all(self) -> None:
        self._before()
        self._meet()
        self._after()

    def _captured(self, pool: Pool) -> tuple[Graph, ...]:
        device, name = pool.device, self._name
        works = {name: self._before, f"what follows {name}": self._after}
        if self._alone:
            works = {name: self._all}
        # A loss of the user's own may draw from torch's generators.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            return tuple(
                Graph(work, device, keep=self._keep, pool=pool, name=name)
                for name, work in works.items()
            )


def meet_timed(meet: Callable[[], object], clock: Clock) -> None:
    """Calls `meet`, which is "reduce" on `clock`; what follows is "train"."""
    clock.begin("reduce")
    with phase("reduce"):
        meet()
    clock.begin("train")
