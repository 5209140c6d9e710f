"""Measures objects: storing, reading, and passing them to tasks and back."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np

from .base import Side, seconds

_KB, _MB = 1_000, 1_000_000
_REPEATS = 5


def memcpy_bytes_per_s(nbytes: int) -> float:
    """Returns the rate of one thread's copy into touched memory, the best of five."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    copies = max(1, 20 * _MB // nbytes)
    return (
        nbytes
        * copies
        / min(seconds(lambda: np.copyto(target, source), copies) for _ in range(_REPEATS))
    )


def _put(side: Side, nbytes: int, number: int) -> dict[str, float]:
    """Measures puts; each object is dropped when the next is stored."""
    value = np.ones(nbytes, np.uint8)
    for _ in range(5):
        ref = side.api.put(value)
    number = side.count(number)
    begin = time.perf_counter()
    for _ in range(number):
        ref = side.api.put(value)
    spent_s = time.perf_counter() - begin
    del ref
    rate = number * nbytes / spent_s
    rates = {"per_s": number / spent_s, "GB_per_s": rate / 1e9}
    if nbytes >= 100 * _MB:  # less than that is copied within the processor's caches
        rates["share_of_memcpy"] = rate / memcpy_bytes_per_s(nbytes)
    return rates


put_1KB = functools.partial(_put, nbytes=_KB, number=5_000)
put_1MB = functools.partial(_put, nbytes=_MB, number=1_000)
put_100MB = functools.partial(_put, nbytes=100 * _MB, number=40)


def _get(side: Side, nbytes: int, number: int) -> dict[str, float]:
    """Measures gets of objects that this process stored and has not read yet, few at a time."""
    value, batch = np.ones(nbytes, np.uint8), min(side.count(number), max(4, 100 * _MB // nbytes))
    spent_s, done = 0.0, -batch  # the first batch is for warming up
    while done < side.count(number):
        refs = [side.api.put(value) for _ in range(batch)]
        begin = time.perf_counter()
        for ref in refs:
            array = side.api.get(ref)
        if done >= 0:
            spent_s += time.perf_counter() - begin
        done += batch
        if array.nbytes != nbytes or array[-1] != 1:
            raise RuntimeError(f"what was stored as {nbytes} ones came back as {array!r}.")
        del array, ref, refs
    return {"per_s": done / spent_s}


get_1KB = functools.partial(_get, nbytes=_KB, number=10_000)
get_1MB = functools.partial(_get, nbytes=_MB, number=2_000)
get_100MB = functools.partial(_get, nbytes=100 * _MB, number=100)


def last_item(array: Any) -> int:
    """Reads a little of its argument."""
    return int(array[-1])


def ones(nbytes: int) -> Any:
    return np.ones(nbytes, np.uint8)


def argument_10MB_by_reference(side: Side) -> dict[str, float]:
    """Measures tasks that share one stored array, 20 submitted, then collected."""
    task, ref = side.task(last_item), side.api.put(ones(10 * _MB))
    return _in_batches(side, lambda: task.remote(ref), 1_000)


def argument_10MB_inline(side: Side) -> dict[str, float]:
    """Measures tasks that each get the array itself."""
    task, array = side.task(last_item), ones(10 * _MB)
    return _in_batches(side, lambda: task.remote(array), 200)


def result_10MB(side: Side) -> dict[str, float]:
    """Measures tasks that return an array."""
    task = side.task(ones)
    return _in_batches(side, lambda: task.remote(10 * _MB), 200)


def _in_batches(side: Side, submit: Any, number: int, batch: int = 20) -> dict[str, float]:
    def submit_batch() -> None:
        side.get([submit() for _ in range(batch)])

    submit_batch()
    submit_batch()
    batches = max(1, side.count(number) // batch)
    return {"per_s": batches * batch / seconds(submit_batch, batches)}
