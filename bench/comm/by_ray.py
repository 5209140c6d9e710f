"""Sends experience through Ray's object store: actors return it, the driver copies it out."""

from __future__ import annotations

import collections
import time
from typing import Any

import ray
import torch

AHEAD = 4  # horizons that may be under way, as with the others


class _Producer:
    def __init__(self, parts: list[list[Any]]) -> None:
        self.parts = parts

    def message(self, index: int) -> list[Any]:
        return self.parts[index]


def run(cuts: list[list[tuple[int, list[Any]]]], horizons: int) -> dict[str, float]:
    """Returns microseconds and CPU seconds of the driver for one horizon of one producer."""
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, num_cpus=len(cuts) + 1)
    make = ray.remote(_Producer)
    arrays = [[[part.numpy() for part in parts] for _, parts in cut] for cut in cuts]
    producers = [make.remote(parts) for parts in arrays]
    targets = [[[torch.zeros_like(part) for part in parts] for _, parts in cut] for cut in cuts]
    number = len(cuts[0])
    order = [
        (producer, index)
        for _ in range(horizons)
        for index in range(number)
        for producer in range(len(cuts))
    ]
    waiting: collections.deque[Any] = collections.deque()
    begin_s = cpu_s = 0.0
    requested = 0
    for count, (source, index) in enumerate(order):
        if count == number * len(cuts):
            begin_s, cpu_s = time.monotonic(), time.process_time()
        while requested < len(order) and requested - count < AHEAD * number * len(cuts):
            sender, message = order[requested]
            waiting.append(producers[sender].message.remote(message))
            requested += 1
        for target, part in zip(targets[source][index], ray.get(waiting.popleft()), strict=True):
            target.numpy()[...] = part
    end_s = time.monotonic()
    for producer in producers:
        ray.kill(producer)
    for producer_targets, cut in zip(targets, cuts, strict=True):
        for copies, (_, parts) in zip(producer_targets, cut, strict=True):
            assert all(map(torch.equal, copies, parts)), "what arrived is not what was sent"
    segments = (horizons - 1) * len(cuts)
    cpu_s = time.process_time() - cpu_s
    return {"us": (end_s - begin_s) / segments * 1e6, "cpu_s": cpu_s / segments}
