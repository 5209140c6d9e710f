#!/usr/bin/env python3
"""Measures whether reducing gradients while backward still runs pays on the CPU.

Claim: none; it decides whether there will be an option for it. It compares two buckets, of which a
thread reduces one as soon as backward has filled it, with one bucket reduced after backward. The
thread's bucket has a group of its own, as a group is not for several threads at once. Both take
turns in the same processes, and their results are compared in every round.

Rows, for k ranks, microseconds of backward and reduction, ratio = time after over time overlapped
(above 1: overlapping pays):
    k2/<hidden layers>/after

    bench/comm/overlap.py --ranks 2,4 --hidden 256:128:64,512:512:512:256
"""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reduction import Spans, cores_of, latency, medians, spans_of
from report import emit_pairs, numbers, parser

from gmi_drl import runtime
from gmi_drl.comm import create_group

_INPUTS, _OUTPUTS = 60, 9  # the Ant's observation; action and value


class Rank:
    """One process, with a network whose gradient is in one bucket and in two."""

    def __init__(self, after: Any, late: Any, early: Any, rank: int, hidden: list[int]) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        widths = [_INPUTS, *hidden, _OUTPUTS]
        layers: list[torch.nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ELU()]
        self._network = torch.nn.Sequential(*layers[:-1])
        self._parameters = list(self._network.parameters())
        self._split = len(self._parameters) // 4 * 2  # backward fills the layers from here on first
        self._groups = [spec.join(rank) for spec in (after, late, early)]
        counts = [p.numel() for p in self._parameters]
        head, tail = sum(counts[: self._split]), sum(counts[self._split :])
        self._whole = self._groups[0].bucket("whole", head + tail)
        self._tail = self._groups[1].bucket("tail", tail)
        self._head = self._groups[2].bucket("head", head)
        self._pool = ThreadPoolExecutor(1)
        self._waiting: list[Future[Any]] = []
        self._unfilled = 0
        self._hooks = False
        for parameter in self._parameters[self._split :]:
            parameter.register_post_accumulate_grad_hook(self._filled)

    def run(self, batch: int, rounds: int, repeats: int) -> dict[str, list[Spans]]:
        """Returns the spans of both, round by round, after a round that does not count."""
        import torch

        torch.manual_seed(self._groups[0].rank)
        data = torch.randn(batch, _INPUTS)
        spans_by_name: dict[str, list[Spans]] = {"after": [], "overlapped": []}
        for _ in range(rounds + 1):
            results = {}
            for name in spans_by_name:
                self._bind(name == "overlapped")
                spans = spans_of(self._reduce, repeats, lambda: self._prepare(data))
                spans_by_name[name].append(spans)
                parts = [self._head.result, self._tail.result]
                results[name] = torch.cat(parts) if self._hooks else self._whole.result.clone()
            assert torch.equal(results["after"], results["overlapped"])
        self._pool.shutdown()
        for group in self._groups:
            group.close()
        return {name: spans[1:] for name, spans in spans_by_name.items()}

    def _prepare(self, data: Any) -> None:
        for parameter in self._parameters:
            parameter.grad.zero_()
        self._unfilled = len(self._parameters) - self._split
        self._loss = self._network(data).square().mean()
        self._groups[0].barrier()

    def _reduce(self) -> None:
        self._loss.backward()
        if self._hooks:
            self._head.reduce()
            self._waiting.pop().result()
        else:
            self._whole.reduce()

    def _filled(self, _: Any) -> None:
        self._unfilled -= 1
        if self._hooks and not self._unfilled:
            self._waiting.append(self._pool.submit(self._tail.reduce))

    def _bind(self, overlapped: bool) -> None:
        """Lets gradients accumulate in the buckets that are reduced."""
        self._hooks, offset = overlapped, 0
        for index, parameter in enumerate(self._parameters):
            bucket = self._whole
            if overlapped:
                offset = 0 if index == self._split else offset
                bucket = self._head if index < self._split else self._tail
            view = bucket.buffer[offset : offset + parameter.numel()]
            parameter.grad = view.view_as(parameter)
            offset += parameter.numel()


def measure(ranks: int, hidden: list[int], batch: int, rounds: int, repeats: int) -> None:
    """Measures the row of one number of ranks and one network."""
    groups = [create_group([f"rank {rank}" for rank in range(ranks)]) for _ in range(3)]
    actors = [
        runtime.remote(Rank)
        .options(name=f"rank{rank}", cores=cores_of(rank, ranks), num_threads=1)
        .remote(*groups, rank, hidden)
        for rank in range(ranks)
    ]
    try:
        answers = runtime.get(
            [actor.run.remote(batch, rounds, repeats) for actor in actors], timeout=600
        )
    finally:
        runtime.kill(actors)
    after, overlapped = (medians(answers, name, latency) for name in ("after", "overlapped"))
    name = f"k{ranks}/{'-'.join(map(str, hidden))}/after"
    emit_pairs(
        "overlap", name, "us", overlapped, after, smaller_is_better=True,
        repeats=rounds * repeats, batch=batch,
    )  # fmt: skip


def main() -> None:
    def networks(text: str) -> list[list[int]]:
        return [[int(width) for width in net.split(":")] for net in text.split(",")]

    options_of = parser(__doc__, rounds=15, batch=512)
    hidden = [[256, 128, 64], [200, 400, 100], [512, 512, 512, 256]]
    options_of.add_argument("--ranks", type=numbers, default=[2, 4])
    options_of.add_argument("--hidden", type=networks, default=hidden)
    options_of.add_argument("--repeats", type=int, default=20, help="in each round")
    options = options_of.parse_args()
    runtime.init(["torch", "gmi_drl.comm.reducers.mpr"])
    try:
        for ranks in options.ranks:
            for hidden in options.hidden:
                measure(ranks, hidden, options.batch, options.rounds, options.repeats)
    finally:
        runtime.shutdown()


if __name__ == "__main__":
    main()
