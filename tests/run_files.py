"""Reads what a run has left in its folder."""

import json

import torch


def metrics(folder):
    """Returns the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_close(one, other):
    """Compares all tensors of two policies."""
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, dict):
            assert_close(value, other[key])
        elif isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, other[key], rtol=0, atol=1e-6)
