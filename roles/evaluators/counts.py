"""Checks whole numbers that are given in Python, where no config has checked them."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from gmi_drl.roles.errors import RoleError


def checked_count(name: str, value: Any, least: int, most: int | None = None, of: str = "") -> int:
    """Returns `value`, which may be numpy's, as an int; RoleError unless it is whole and in range.

    `of` says what `most` comes from.
    """
    if isinstance(value, Integral) and least <= int(value) and (most is None or int(value) <= most):
        return int(value)
    span = f"{least} or more" if most is None else f"from {least} to {most}{of and f', {of}'}"
    raise RoleError(f"{name}={value!r}; must be a whole number, {span}. Choose one of these.")
