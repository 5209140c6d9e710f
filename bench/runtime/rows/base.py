"""Gives both sides of the comparison one interface, and holds what the rows share."""

from __future__ import annotations

import contextlib
import functools
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

NUM_CPUS = 2
GET_S = 120.0  # the longest any one result may take

# What a row may measure: its unit, and whether more of it is better.
UNITS: dict[str, tuple[str, bool]] = {
    "per_s": ("1/s", True),
    "GB_per_s": ("GB/s", True),
    "share_of_memcpy": ("1", True),
    "p50_ms": ("ms", False),
    "p99_ms": ("ms", False),
    "ms": ("ms", False),
    "s": ("s", False),
    "import_s": ("s", False),
    "init_to_first_result_s": ("s", False),
    "shutdown_s": ("s", False),
    "memory_beyond_driver_MB": ("MB", False),
    "driver_growth_MB": ("MB", False),
    "processes": ("processes", False),
    "threads": ("threads", False),
    "cpu_percent": ("% of a core", False),
    "broadcast_ms": ("ms", False),
    "steps_per_s": ("steps/s", True),
    "barrier_steps_per_s": ("steps/s", True),
    "over_barrier": ("1", True),
}


@dataclass(frozen=True)
class Side:
    """One of the two runtimes.

    Both have `remote, get, wait, put, kill, shutdown`; only `init` takes other arguments.
    """

    name: str  # "ours" or "ray"
    quick: bool = False

    @property
    def api(self) -> Any:
        return api(self.name)

    def init(self, num_cpus: int = NUM_CPUS) -> None:
        if self.name == "ray":
            # Optional parts of Ray are off, to its advantage.
            self.api.init(num_cpus=num_cpus, include_dashboard=False, log_to_driver=False)
        else:
            self.api.init(num_cpus=num_cpus)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Starts the runtime, and ends it."""
        self.init()
        try:
            yield
        finally:
            self.api.shutdown()

    def count(self, number: int) -> int:
        """Returns how often to repeat; a twentieth in a smoke test."""
        return max(2, number // 20) if self.quick else number

    def task(self, function: Callable[..., Any], **options: Any) -> Any:
        """Returns a remote function; `f.remote(...)` submits it."""
        remote = self.api.remote(function)
        return remote.options(**options) if options else remote

    def actor(self, cls: type, **options: Any) -> Any:
        """Returns a remote class that takes no CPU, so that there may be more actors than cores."""
        return self.api.remote(cls).options(num_cpus=0, **options)

    def get(self, refs: Any) -> Any:
        return self.api.get(refs, timeout=GET_S)


Measure = Callable[[Side], dict[str, float]]


@functools.cache
def api(name: str) -> Any:
    """Returns the module of a side, also in a worker."""
    return importlib.import_module("ray" if name == "ray" else "gmi_drl.runtime")


def noop(*_: Any) -> None:
    """Does nothing, so that a task's cost is all overhead."""


def warm_up(side: Side, task: Any) -> None:
    """Runs the task until every worker has started, has its code and has run it several times."""
    for _ in range(3):
        side.get([task.remote() for _ in range(100)])


def seconds(work: Callable[[], Any], times: int = 1) -> float:
    """Returns the seconds that `times` calls take together."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - begin


def one_at_a_time(call: Callable[[], Any], number: int) -> dict[str, float]:
    """Returns rate and latencies of calls that each wait for their answer."""
    times = [seconds(call) for _ in range(number)]
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"per_s": number / sum(times), "p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3}
