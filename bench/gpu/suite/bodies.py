"""Holds the functions that GMIs of the suite's gangs run; they are sent by value, not imported."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

Spans = list[tuple[float, float]]  # (begin, end) of each repetition, seconds of one clock for all


class Idle:
    """A GMI that does nothing."""

    def ready(self) -> bool:
        """Answers that it runs, as its slice was verified before it was made."""
        return True

    def torch(self, on_gpu: bool) -> float:
        """Computes something on its device."""
        import torch

        return float((torch.ones(64, 64, device="cuda" if on_gpu else "cpu") @ torch.ones(64, 1)
                      .to("cuda" if on_gpu else "cpu")).sum())  # fmt: skip


class Reducing:
    """One rank of a group for each strategy."""

    def __init__(self, groups: Mapping[str, Any], rank: int, on_gpu: bool) -> None:
        import torch

        wait = timedelta(seconds=20)
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._rank = rank
        self._groups = {name: spec.join(rank, wait) for name, spec in groups.items()}

    def run(self, sizes: Sequence[int], rounds: int, repeats: int) -> dict[tuple[str, int], Spans]:
        """Returns the spans of each strategy and size, round by round with all repeats.

        The sum is checked after each round: every rank's buffer is filled with its rank + 1.
        """
        import torch

        buckets = {
            (name, nbytes): group.bucket(f"{nbytes}", nbytes // 4, torch.float32, self._device)
            for name, group in self._groups.items()
            for nbytes in sizes
        }
        meeting = next(iter(self._groups.values()))
        expected = sum(range(1, meeting.size + 1))
        spans_of: dict[tuple[str, int], Spans] = {key: [] for key in buckets}
        for number in range(rounds + 1):
            for key, bucket in buckets.items():
                spans: Spans = []
                for _ in range(repeats):
                    bucket.buffer.fill_(self._rank + 1)
                    self._synchronize()
                    meeting.barrier()
                    begin = time.monotonic()
                    bucket.reduce("sum")
                    self._synchronize()
                    spans.append((begin, time.monotonic()))
                if not bool((bucket.result == expected).all()):
                    raise RuntimeError(f"{key}: the sum is not {expected} everywhere")
                spans_of[key] += spans if number else []
        meeting.barrier()  # no rank leaves while another still reduces
        for group in self._groups.values():
            group.close()
        return spans_of

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            import torch

            torch.cuda.current_stream().synchronize()
