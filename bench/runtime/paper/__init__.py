"""Holds the Ray paper's figures, made again on one host; 10a and 10b: bench/runtime/gcs.py."""

import importlib

from .base import Figure

MODULES = {
    "8a": "locality",
    "8b": "throughput",
    "9": "store",
    "11a": "recovery",
    "11b": "checkpoints",
    "12": "allreduce",
}


def find(number: str) -> Figure:
    """Returns a figure by its number in the paper."""
    if number not in MODULES:
        raise SystemExit(f"figure {number!r} is not known. Known figures: {', '.join(MODULES)}.")
    return importlib.import_module(f".{MODULES[number]}", __name__).FIGURE
