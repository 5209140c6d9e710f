"""Aligns numbers in memory, so that a GPU's matrix kernels read 16 bytes and more at once.

cuBLAS takes slow kernels for a matrix whose address or rows are not multiples of 16 bytes, above
all with tf32. Torch is not imported here: a launcher computes sizes by it.
"""

from __future__ import annotations

from typing import Final

PARAMETER: Final = 64  # float32 numbers from which each parameter begins at a multiple: 256 bytes
ROW: Final = 8  # float32 numbers of which a rollout's row is a multiple: 32 bytes


def aligned(count: int, multiple: int) -> int:
    """Returns `count`, or the next larger number that `multiple` divides."""
    return -(-count // multiple) * multiple
