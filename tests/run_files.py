"""Reads what a run has left in its folder."""

import json

import torch

from gmi_drl.comm.experience import Schema


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


def segment_bytes(folder, gmi_id=0):
    """Returns the bytes of a segment that an agent has sent, by the schema that it has chosen."""
    record = json.loads((folder / "report" / f"channels_gmi{gmi_id}.json").read_text())
    schema = Schema.from_bytes(record["schema"].encode())
    return sum(channel.nbytes(schema.steps, schema.num_env) for channel in schema.channels)
