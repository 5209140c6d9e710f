"""Large values: kept once in shared memory, read without a copy, and on disk when memory is full.

python examples/runtime/values.py
"""

from typing import Any

import numpy as np

from gmi_drl import runtime

MB = 1_000_000


@runtime.remote
def mean_of_column(table: np.ndarray, column: int) -> float:
    """The table is a view of shared memory: no copy is made for this task."""
    return float(table[:, column].mean())


@runtime.remote
def make(number: int, num_mb: int) -> np.ndarray:
    return np.full(num_mb * MB // 8, float(number))


def main(**engine: Any) -> None:
    runtime.init(**{"num_cpus": 2, "object_store_bytes": 200 * MB} | engine)

    table = runtime.put(np.arange(4 * MB, dtype=np.float64).reshape(-1, 4))  # 32 MB, once
    print("means:", runtime.get([mean_of_column.remote(table, column) for column in range(4)]))

    view = runtime.get(table)
    try:
        view[0, 0] = 1.0
    except ValueError as error:
        print("values are immutable:", error)
    mine = view.copy()  # to change it, take a copy
    mine[0, 0] = 1.0

    refs = [make.remote(number, 40) for number in range(10)]  # 400 MB: half of it on disk
    print("all are there:", [int(runtime.get(ref)[0]) for ref in refs])

    try:
        runtime.put(np.zeros(300 * MB // 8))
    except runtime.ObjectStoreFullError as error:
        print("too large:", error)

    runtime.shutdown()


if __name__ == "__main__":
    main()
