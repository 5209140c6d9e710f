"""Tells when more environments no longer pay: Sat, the bend of the curve, and the memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gmi_drl.selector.tune.candidate import Measured


@dataclass(frozen=True)
class Point:
    """One measured place on a row's curve."""

    num_env: int
    steps_per_s: float
    memory: float = 0.0  # share of the fullest memory


def mem_bytes(measured: Measured) -> int:
    """Returns the memory that Sat is about: the device's, the host's on groups of cores."""
    return measured.host_bytes if measured.device_bytes is None else measured.device_bytes


def sat(before: Measured, after: Measured) -> float:
    """Algorithm 2, line 17: (d_perf / last_perf) / (d_mem / last_mem).

    Memory that does not grow, as that of a caching allocator, costs nothing: infinite while
    throughput rises, and its loss in percent of itself when it falls. Infinite from nothing too.
    """
    if before.steps_per_s <= 0:
        return math.inf if after.steps_per_s > 0 else 0.0
    gain = after.steps_per_s / before.steps_per_s - 1
    last, now = mem_bytes(before), mem_bytes(after)
    if now <= last:
        return math.inf if gain > 0 else gain
    return gain / (now / last - 1) if last > 0 else 0.0


def project_memory(points: Sequence[Point], num_env: int) -> float | None:
    """ATC 2025: m_p = (e - e2) / (e2 - e1) (m2 - m1) + m2, from the two points nearest to e.

    One on each side of e where there are; None from fewer than two points. Memory that was measured
    to shrink is taken as flat.
    """
    if len(points) < 2:
        return None
    below = sum(point.num_env < num_env for point in points)
    at = min(max(below - 1, 0), len(points) - 2)
    one, two = points[at], points[at + 1]
    slope = max((two.memory - one.memory) / (two.num_env - one.num_env), 0.0)
    return slope * (num_env - two.num_env) + two.memory


def throughput_bound(points: Sequence[Point], num_env: int, error: float = 0.0) -> float:
    """Bounds the steps/s that a row may give at `num_env`, from its measured points (one or more).

    One step of all environments takes t(n) = n / steps_per_s(n): a fixed part, and a part for each
    environment that does not get less when there are more of them, so that t bends upward only and
    lies above each line through two measured points, outside of these. To the left of a single
    point anything is possible. Where the line through the next two on the right does not pass
    clearly (2 x `error`) below the last on the left, there may be a cliff, and it says nothing of
    what is before that.
    """
    times = [(p.num_env, p.num_env / p.steps_per_s) for p in points]
    left = [point for point in times if point[0] < num_env]
    right = [point for point in times if point[0] > num_env]
    least = [_line(left[-2], left[-1], num_env)] if len(left) >= 2 else [t for _, t in left]
    if len(right) >= 2:
        bends = not left or _line(right[0], right[1], left[-1][0]) < left[-1][1] * (1 - 2 * error)
        if bends:
            least.append(_line(right[0], right[1], num_env))
    limit = max(least, default=0.0)
    return num_env / limit if limit > 0 else math.inf


def _line(one: tuple[int, float], two: tuple[int, float], num_env: int) -> float:
    (e1, t1), (e2, t2) = one, two
    slope = max((t2 - t1) / (e2 - e1), 0.0)
    return t2 + slope * (num_env - e2)
