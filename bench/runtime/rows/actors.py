"""Measures actors: creating them, calling them, and one that is killed."""

from __future__ import annotations

import os
import signal
import statistics
import time
from typing import Any

from .base import GET_S, Side, one_at_a_time, seconds


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        self.value += 1
        return self.value

    def pid(self) -> int:
        return os.getpid()


def _answering(side: Side, number: int, **options: Any) -> list[Any]:
    """Returns actors that have answered once."""
    handles = [side.actor(Counter, **options).remote() for _ in range(number)]
    side.get([handle.pid.remote() for handle in handles])
    return handles


def actor_creation_one(side: Side) -> dict[str, float]:
    """Times an actor from its request to its first answer: the median of some made in turn."""
    handles = _answering(side, 1)
    times = []
    for _ in range(side.count(8)):
        times.append(seconds(lambda: handles.extend(_answering(side, 1))))
    return {"ms": 1e3 * statistics.median(times)}


def actor_creation_eight(side: Side) -> dict[str, float]:
    """Times eight actors, requested at once, until the last has answered."""
    handles = _answering(side, 1)
    return {"ms": 1e3 * seconds(lambda: handles.extend(_answering(side, 8)))}


def actor_round_trip(side: Side) -> dict[str, float]:
    """Times calls of one actor, each awaited before the next."""
    (handle,) = _answering(side, 1)
    side.get([handle.add.remote() for _ in range(200)])
    return one_at_a_time(lambda: side.get(handle.add.remote()), side.count(3_000))


def actor_calls_pipelined(side: Side) -> dict[str, float]:
    """Measures 10,000 calls of one actor, all sent before the first result is asked for."""
    return {"per_s": _pipelined(side, 1)}


def actor_calls_over_eight(side: Side) -> dict[str, float]:
    """Measures 10,000 calls over eight actors, all sent before the first result is asked for."""
    return {"per_s": _pipelined(side, 8)}


def _pipelined(side: Side, actors: int) -> float:
    handles, number = _answering(side, actors), side.count(10_000) // actors
    side.get([handle.add.remote() for _ in range(200) for handle in handles])

    def calls() -> None:
        counts = side.get([handle.add.remote() for _ in range(number) for handle in handles])
        if counts[-1] != 200 + number:
            raise RuntimeError(f"the last call counted {counts[-1]}; it should be {200 + number}.")

    return number * actors / seconds(calls)


def actor_killed_answers_again(side: Side) -> dict[str, float]:
    """Times from the SIGKILL of an actor's process to the first answer of its replacement.

    A call that fails in between is made again at once, as a user would have to.
    """
    (handle,) = _answering(side, 1, max_restarts=1)
    pid = side.get(handle.pid.remote())
    begin = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    while time.perf_counter() - begin < GET_S:
        try:
            if side.api.get(handle.pid.remote(), timeout=GET_S) != pid:
                return {"s": time.perf_counter() - begin}
        except Exception:
            time.sleep(0.001)
    raise RuntimeError(f"the actor did not answer again within {GET_S:g} s.")
