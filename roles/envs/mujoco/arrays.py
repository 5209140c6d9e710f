"""Computes the array functions of the tasks' equations, so that NumPy and torch share these.

Operators and methods that both have (`+`, `&`, `.all(1)`, slices) are written plainly in the tasks.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Arrays:
    """Computes with NumPy's arrays [N, ...]; `on_device.arrays.TorchArrays` with tensors."""

    copy: Any = staticmethod(np.copy)
    clip: Any = staticmethod(np.clip)
    isfinite: Any = staticmethod(np.isfinite)
    exp: Any = staticmethod(np.exp)
    sin: Any = staticmethod(np.sin)
    cos: Any = staticmethod(np.cos)
    arcsin: Any = staticmethod(np.arcsin)
    cross: Any = staticmethod(np.cross)  # over the last axis, of 3

    def constant(self, a: Any) -> Any:
        """Returns a NumPy array of the model as an array of this kind."""
        return a

    def join(self, parts: list[Any]) -> Any:
        """Returns `parts` side by side along the last axis."""
        return np.concatenate(parts, axis=-1)

    def rows(self, numbers: list[int]) -> Any:
        """Returns what `take` takes."""
        return np.array(numbers)

    def take(self, a: Any, rows: Any) -> Any:
        """Returns [N, len(rows), j] of `a` [N, b, j]."""
        return a[:, rows]

    def square_sum(self, a: Any) -> Any:
        """Returns [N]: the sum of squares over the last of two axes; NumPy's order is pairwise."""
        return np.sum(np.square(a), axis=1)

    def weighted_sum(self, weight: Any, a: Any) -> Any:
        """Returns [N, j]: the sum of `a` [N, b, j] over b with weights [b]."""
        return np.einsum("b,nbj->nj", weight, a)

    def none(self, a: Any) -> Any:
        """Returns [N] false, for `a` [N, ...]."""
        return np.zeros(len(a), dtype=np.bool_)

    def write_columns(self, out: Any, parts: list[Any]) -> None:
        """Sets `parts` ([N, k] each) side by side into `out`."""
        np.concatenate(parts, axis=1, out=out, casting="same_kind")


NUMPY = Arrays()
