"""Reads what a run has left in its folder."""

import json


def metrics(folder):
    """Returns the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
