"""Computes the array functions of the tasks' equations, so that NumPy and torch share these.

Operators and methods that both have (`+`, `&`, `.all(1)`, slices) are written plainly in the tasks.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Arrays:
    """Computes with NumPy's arrays [N, ...]; `on_device.arrays.TorchArrays` with tensors.

    Functions that have one name in both, such as `clip` and `sin`, are those of `module`.
    """

    module: Any = np
    copy: Any = staticmethod(np.copy)
    cross: Any = staticmethod(np.cross)  # over the last axis, of 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

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

# Unit quaternions [..., 4], w first as in MuJoCo, over either kind of array.


def conjugate(xp: Arrays, q: Any) -> Any:
    """Returns the inverse rotation."""
    return xp.join([q[..., :1], -q[..., 1:]])


def multiply(xp: Arrays, a: Any, b: Any) -> Any:
    """Returns the rotation by b, then by a."""
    w, v, x, u = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    scalar = w * x - (v * u).sum(-1)[..., None]
    return xp.join([scalar, w * u + x * v + xp.cross(v, u)])


def rotate(xp: Arrays, q: Any, a: Any) -> Any:
    """Returns the vectors [..., 3] turned by q."""
    twice = 2 * xp.cross(q[..., 1:], a)
    return a + q[..., :1] * twice + xp.cross(q[..., 1:], twice)


def up_in(xp: Arrays, q: Any) -> Any:
    """Returns [..., 3]: the world's z axis in a frame turned by q."""
    w, x, y, z = (q[..., k : k + 1] for k in range(4))
    return xp.join([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z])


def about_y_then_x(xp: Arrays, about_x: Any, about_y: Any) -> Any:
    """Returns the turn about the world's y axis and then about its x axis, by angles [..., 1]."""
    cos_x, sin_x = xp.cos(about_x / 2), xp.sin(about_x / 2)
    cos_y, sin_y = xp.cos(about_y / 2), xp.sin(about_y / 2)
    return xp.join([cos_x * cos_y, sin_x * cos_y, cos_x * sin_y, sin_x * sin_y])
