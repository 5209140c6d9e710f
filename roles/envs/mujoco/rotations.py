"""Computes with unit quaternions [..., 4], w first as in MuJoCo, over either kind of array."""

from __future__ import annotations

from typing import Any

from .arrays import Arrays


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
