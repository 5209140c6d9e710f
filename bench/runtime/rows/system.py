"""Measures starting, idling and ending."""

from __future__ import annotations

import time

import psutil

from .base import Side, noop, seconds

_SETTLE_S = 3.0  # both sides still start processes for a while after the first result
_IDLE_S = 2.0
_MB = 1e6


def start(side: Side) -> dict[str, float]:
    """Times import, start to the first task's result, and shutdown, in a fresh interpreter."""
    import_s = seconds(lambda: side.api)

    def first_result() -> None:
        side.init()
        side.get(side.task(noop).remote())

    first_s = seconds(first_result)
    shutdown_s = seconds(side.api.shutdown)
    return {"import_s": import_s, "init_to_first_result_s": first_s, "shutdown_s": shutdown_s}


def idle(side: Side) -> dict[str, float]:
    """Measures an idle runtime: memory as proportional set size, processes, threads and CPU.

    The driver's growth comes from importing and using the library; `memory_beyond_driver_MB` does
    not include it.
    """
    driver = psutil.Process()
    pss_before = driver.memory_full_info().pss
    side.init()
    side.get([side.task(noop).remote() for _ in range(100)])
    time.sleep(_SETTLE_S)
    children = driver.children(recursive=True)
    growth = driver.memory_full_info().pss - pss_before
    begin, used = time.perf_counter(), _cpu_s([driver, *children])
    time.sleep(_IDLE_S)
    used = _cpu_s([driver, *children]) - used
    results = {
        "memory_beyond_driver_MB": sum(p.memory_full_info().pss for p in children) / _MB,
        "driver_growth_MB": growth / _MB,
        "processes": len(children),
        "threads": sum(process.num_threads() for process in [driver, *children]),
        "cpu_percent": 100 * used / (time.perf_counter() - begin),
    }
    side.api.shutdown()
    return results


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)
