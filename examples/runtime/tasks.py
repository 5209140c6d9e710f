"""Tasks: functions that run in other processes and take each other's results.

python examples/runtime/tasks.py
"""

import random
from typing import Any

import numpy as np

from gmi_drl import runtime


@runtime.remote
def hits(seed: int, num_points: int) -> int:
    """How many of so many random points lie in the quarter circle."""
    points = np.random.default_rng(seed).random((num_points, 2))
    return int(np.sum((points**2).sum(axis=1) <= 1))


@runtime.remote
def total(*numbers: int) -> int:
    """Given references, a task waits for their values and sees these."""
    return sum(numbers)


@runtime.remote
def squares(count: int):
    """A generator's results can be had one by one, while it still runs."""
    for number in range(count):
        yield number**2


@runtime.remote(num_returns=2)
def extremes(values: np.ndarray) -> tuple[float, float]:
    """Two results, each with a reference of its own."""
    return values.min(), values.max()


@runtime.remote(max_retries=5, retry_exceptions=(ConnectionError,))
def fetch(number: int) -> str:
    """Fails twice; it is begun again, as asked for."""
    attempt = runtime.context().attempt
    if attempt < 2:
        raise ConnectionError(f"nobody answers, attempt {attempt}")
    return f"page {number} at attempt {attempt}"


@runtime.remote
def sort(values: list[int]) -> list[int]:
    """A task may call tasks, itself among them, and wait for them, however deep."""
    if len(values) < 2:
        return values
    halves = [sort.remote(values[: len(values) // 2]), sort.remote(values[len(values) // 2 :])]
    left, right = runtime.get(halves)
    merged = []
    while left and right:
        merged.append(left.pop(0) if left[0] <= right[0] else right.pop(0))
    return merged + left + right


def main(**engine: Any) -> None:
    runtime.init(**{"num_cpus": 2} | engine)

    parts = [hits.remote(seed, 50_000) for seed in range(8)]
    print(f"pi is about {4 * runtime.get(total.remote(*parts)) / 400_000:.2f}")

    print("squares:", [runtime.get(ref) for ref in squares.remote(5)])

    low, high = extremes.remote(np.array([3.0, 1.0, 2.0]))
    print("extremes:", runtime.get(low), runtime.get(high))

    print(runtime.get(fetch.remote(7)))

    numbers = random.Random(1).sample(range(100), 20)
    assert runtime.get(sort.remote(numbers)) == sorted(numbers)
    print("sorted by tasks that call tasks: 20 numbers")

    try:
        runtime.get(extremes.options(num_returns=1).remote("no array"))
    except AttributeError as error:
        print("the exception of the task is one of its own class:", type(error).__name__)

    runtime.shutdown()


if __name__ == "__main__":
    main()
