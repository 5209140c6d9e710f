"""Writes numbers of things in words."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """Returns a number with its noun: 1 iteration, 2,000 iterations."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
