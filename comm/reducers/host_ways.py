"""Measures by which way the leaders of hosts combine a vector in the least time.

All leaders make the same calls, so that each knows the same times and takes the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import numpy as np

from gmi_drl.comm.links.links import HostsWay, Link, fit

SIZES: Final = (16 << 10, 128 << 10, 512 << 10, 2 << 20)  # bytes; policies have 0.2 to 3 MB
_PASSES: Final = 3
_REPEATS: Final = 3  # one after the other, as an update does
_BUDGET_S: Final = 1.0  # for all; two sizes are measured in any case

Array = np.ndarray[Any, Any]


def measure(
    ways: Sequence[HostsWay],
    all_reduce: Callable[[HostsWay, Array], None],
    largest: Callable[[float], float],
) -> Generator[int, None, dict[HostsWay, Link]]:
    """Measures each way; collective among leaders, who all return the same.

    `all_reduce` sums a vector by a way, and `largest` returns the largest of what leaders give it.
    Yields 1 after each way at each size, where a leader can tell its host that it is there.
    """
    seconds: dict[HostsWay, dict[int, list[float]]] = {way: {} for way in ways}
    spent_s, last_s, last_bytes = 0.0, 0.0, SIZES[0]
    for number, nbytes in enumerate(SIZES * _PASSES):
        # A vector takes no longer than in proportion to a shorter one: one that a slow network
        # would not bring across before the deadline of the group is not tried.
        most_s = last_s * max(1.0, nbytes / last_bytes)
        if number >= 2 and spent_s + most_s > _BUDGET_S:
            continue
        begun_s = spent_s
        vector = np.zeros(nbytes // 4, np.float32)
        for way in ways:
            all_reduce(way, vector)  # which leaves all with the memory and the room that it takes
            largest(0.0)
            begin_s = time.monotonic()
            for _ in range(_REPEATS):
                all_reduce(way, vector)
            took_s = largest(time.monotonic() - begin_s)
            spent_s += took_s
            seconds[way].setdefault(nbytes, []).append(took_s / _REPEATS)
            yield 1
        last_s, last_bytes = spent_s - begun_s, nbytes
    return {way: fit([*of_way.items()]) for way, of_way in seconds.items()}
