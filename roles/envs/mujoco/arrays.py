"""The array functions that a task's equations call, so that NumPy and torch share the equations.

Operators and methods that both have (`+`, `&`, `.all(1)`, slices) are written plainly in the tasks.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Arrays(Protocol):
    """Functions over arrays [N, ...] of one kind."""

    def constant(self, a: Any) -> Any:
        """A NumPy array of the model as an array of this kind."""
        ...

    def copy(self, a: Any, /) -> Any: ...

    def clip(self, a: Any, low: float, high: float, /) -> Any: ...

    def isfinite(self, a: Any, /) -> Any: ...

    def exp(self, a: Any, /) -> Any: ...

    def sin(self, a: Any, /) -> Any: ...

    def cos(self, a: Any, /) -> Any: ...

    def arcsin(self, a: Any, /) -> Any: ...

    def cross(self, a: Any, b: Any) -> Any:
        """The vector product over the last axis, of 3."""
        ...

    def join(self, parts: list[Any]) -> Any:
        """`parts` side by side along the last axis."""
        ...

    def rows(self, numbers: list[int]) -> Any:
        """What `take` takes."""
        ...

    def take(self, a: Any, rows: Any) -> Any:
        """[N, len(rows), j] of `a` [N, b, j]."""
        ...

    def square_sum(self, a: Any) -> Any:
        """Sum of squares over the last of two axes; [N]."""
        ...

    def weighted_sum(self, weight: Any, a: Any) -> Any:
        """[N, j]: the sum of `a` [N, b, j] over b with weights [b]."""
        ...

    def none(self, a: Any) -> Any:
        """[N] false, for `a` [N, ...]."""
        ...

    def write_columns(self, out: Any, parts: list[Any]) -> None:
        """Set `parts` ([N, k] each) side by side into `out`."""
        ...


class NumpyArrays:
    """`Arrays` over NumPy. The sum of squares is in NumPy's (pairwise) order."""

    copy: Any = staticmethod(np.copy)
    clip: Any = staticmethod(np.clip)
    isfinite: Any = staticmethod(np.isfinite)
    exp: Any = staticmethod(np.exp)
    sin: Any = staticmethod(np.sin)
    cos: Any = staticmethod(np.cos)
    arcsin: Any = staticmethod(np.arcsin)
    cross: Any = staticmethod(np.cross)

    @staticmethod
    def join(parts: list[Any]) -> Any:
        return np.concatenate(parts, axis=-1)

    @staticmethod
    def rows(numbers: list[int]) -> Any:
        return np.array(numbers)

    @staticmethod
    def take(a: Any, rows: Any) -> Any:
        return a[:, rows]

    @staticmethod
    def constant(a: Any) -> Any:
        return a

    @staticmethod
    def square_sum(a: Any) -> Any:
        return np.sum(np.square(a), axis=1)

    @staticmethod
    def weighted_sum(weight: Any, a: Any) -> Any:
        return np.einsum("b,nbj->nj", weight, a)

    @staticmethod
    def none(a: Any) -> Any:
        return np.zeros(len(a), dtype=np.bool_)

    @staticmethod
    def write_columns(out: Any, parts: list[Any]) -> None:
        np.concatenate(parts, axis=1, out=out, casting="same_kind")


NUMPY = NumpyArrays()
