"""Holds the rows of the comparison with Ray, each written once and run by both sides.

Modules are imported only when one of their rows is run: workers import this package too, and its
imports would cost them time and memory.
"""

import importlib

from .base import Measure

MODULES = {
    "system": ("start", "idle"),
    "tasks": (
        "tasks_submitted_then_collected", "task_round_trip", "task_chain", "tasks_nested",
        "wait_one_by_one", "task_retried_after_crash",
    ),
    "actors": (
        "actor_creation_one", "actor_creation_eight", "actor_round_trip", "actor_calls_pipelined",
        "actor_calls_over_eight", "actor_killed_answers_again",
    ),
    "objects": (
        "put_1KB", "put_1MB", "put_100MB", "get_1KB", "get_1MB", "get_100MB",
        "argument_10MB_by_reference", "argument_10MB_inline", "result_10MB",
    ),
    "rl": ("rl_loop", "uneven_simulations"),
}  # fmt: skip
NAMES = tuple(name for names in MODULES.values() for name in names)


def find(name: str) -> Measure:
    """Returns the function that measures a row."""
    for module, names in MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    raise SystemExit(f"row {name!r} is not known. Known rows: {', '.join(NAMES)}.")
