"""Measures tasks: how many a second, how long one takes, and one whose worker dies."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import Any

from .base import Side, api, noop, one_at_a_time, seconds, warm_up


def tasks_submitted_then_collected(side: Side) -> dict[str, float]:
    """Measures 10,000 tasks that do nothing, all submitted before the first result is asked for."""
    task, number = side.task(noop), side.count(10_000)
    warm_up(side, task)
    return {"per_s": number / seconds(lambda: side.get([task.remote() for _ in range(number)]))}


def task_round_trip(side: Side) -> dict[str, float]:
    """Times tasks that do nothing, each awaited before the next."""
    task = side.task(noop)
    warm_up(side, task)
    return one_at_a_time(lambda: side.get(task.remote()), side.count(2_000))


def add_one(number: int) -> int:
    return number + 1


def task_chain(side: Side) -> dict[str, float]:
    """Measures 1,000 tasks, each with the result of the previous one as its argument."""
    task, number = side.task(add_one), side.count(1_000)
    side.get([task.remote(i) for i in range(200)])

    def chain() -> None:
        ref = task.remote(0)
        for _ in range(number - 1):
            ref = task.remote(ref)
        _check(side.get(ref), number)

    return {"per_s": number / seconds(chain)}


@functools.cache
def _nested(side: str) -> Any:
    return api(side).remote(noop)


def submit_and_collect(side: str, number: int) -> int:
    """Submits tasks from a task and waits for them."""
    task = _nested(side)
    return len(api(side).get([task.remote() for _ in range(number)]))


def tasks_nested(side: Side) -> dict[str, float]:
    """Measures 1,000 tasks submitted inside ten others, which wait for them."""
    task, number = side.task(submit_and_collect), side.count(100)
    side.get([task.remote(side.name, number) for _ in range(4)])

    def nest() -> None:
        _check(side.get([task.remote(side.name, number) for _ in range(10)]), [number] * 10)

    return {"per_s": 10 * number / seconds(nest)}


def wait_one_by_one(side: Side) -> dict[str, float]:
    """Times 1,000 tasks that do nothing, collected one at a time as they are ready."""
    task, number = side.task(noop), side.count(1_000)
    warm_up(side, task)

    def wait() -> None:
        pending = [task.remote() for _ in range(number)]
        while pending:
            _, pending = side.api.wait(pending, num_returns=1)

    return {"s": seconds(wait)}


def crash_once(flag: str) -> int:
    """Kills its worker the first time and answers the second time."""
    if not os.path.exists(flag):
        Path(flag).touch()
        os.kill(os.getpid(), 9)
    return os.getpid()


def task_retried_after_crash(side: Side) -> dict[str, float]:
    """Times a task whose worker is killed, from its submission to its result."""
    task = side.task(crash_once, max_retries=3)
    warm_up(side, side.task(noop))
    with tempfile.TemporaryDirectory() as folder:
        return {"s": seconds(lambda: side.get(task.remote(f"{folder}/crashed")))}


def _check(result: object, expected: object) -> None:
    if result != expected:
        raise RuntimeError(f"the result is {result!r}; it should be {expected!r}.")
