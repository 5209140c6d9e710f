#!/usr/bin/env python3
"""Measures gradient reduction on one host, beside torch.distributed (gloo) and one copy.

Claim: at the size of a policy, reducing gradients in the memory they live in is many times as fast
as gloo, and not far from one copy of them.

Every rank writes a fresh gradient where the contestant wants it, all ranks meet, and then reduce:
the time is from the last rank's start to the last one's result (one clock for all processes). Ours
and gloo take turns, round after round, in the same processes; results are checked in every round.
Ranks are kept to cores of their own, as GMIs are, or to a share of one when there are more ranks
than cores. The copy is NumPy's, of one vector to another, by rank 0 while the others sleep.
`call_us` is the time of one rank's call, with its wait for those that begin later.

Rows, for k ranks and so many bytes of float32, in microseconds, ratio = peer's time over ours:
    k4/224000B/gloo     torch.distributed, all_reduce (sum) of a tensor of the process's own
    k4/224000B/copy     one copy (below 1: how far from it)
    k4/224000B/openmpi  mpi4py's Allreduce, in processes of its own, if mpi4py and mpiexec
                        are installed
    strategies/2x2/224000B/mrr, .../har   the same ranks on 2 devices with 2 each (2x1 and 4x2 for 2
                        and 8 ranks): MPR's time beside that of the paper's other strategies (its
                        Table 7 at this size)

    bench/comm/reduction.py --ranks 2,4,8 --bytes 4000,224000,3000000
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import emit_pairs, numbers, parser

from gmi_drl import runtime
from gmi_drl.comm import create_group

STRATEGIES: tuple[Literal["mrr", "har"], ...] = ("mrr", "har")
DEFAULT_BYTES = [4_000, 50_000, 224_000, 1_000_000, 3_000_000, 10_000_000, 100_000_000]
LONGEST_BYTES = 120_000_000  # reduced in a round, which limits the repetitions
Spans = list[tuple[float, float]]  # (begin, end) of each repetition, seconds


def spans_of(
    call: Callable[[], Any], repeats: int, prepare: Callable[[], Any] = lambda: None
) -> Spans:
    """Times calls one after the other, with what prepares each before it."""
    spans = []
    for _ in range(repeats):
        prepare()
        begin = time.monotonic()
        call()
        spans.append((begin, time.monotonic()))
    return spans


class Rank:
    """One process of the benchmark."""

    def __init__(self, groups: dict[str, Any], rank: int, store: str) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.groups = {name: spec.join(rank) for name, spec in groups.items()}
        self.group = self.groups["ours"]
        self.rank, self.size = rank, self.group.size
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=self.size
        )

    def run(self, nbytes: int, rounds: int, repeats: int) -> dict[str, list[Spans]]:
        """Returns the spans of each contestant and round, after a round that does not count."""
        import numpy as np
        import torch
        import torch.distributed as dist

        numel = nbytes // 4
        fresh = torch.from_numpy(
            np.random.default_rng(self.rank).standard_normal(numel, dtype=np.float32)
        )
        buckets = {
            name: group.bucket(f"gradient {nbytes}", numel) for name, group in self.groups.items()
        }
        gloo_buffer = torch.zeros(numel)
        source, target = fresh.numpy(), np.zeros(numel, np.float32)

        def gloo() -> torch.Tensor:
            dist.all_reduce(gloo_buffer)
            return gloo_buffer

        contestants = {
            name: (bucket.buffer, functools.partial(bucket.reduce, "sum"))
            for name, bucket in buckets.items()
        }
        contestants["gloo"] = (gloo_buffer, gloo)
        spans_by_name: dict[str, list[Spans]] = {name: [] for name in (*contestants, "copy")}
        for _ in range(rounds + 1):
            results = {}
            for name, (buffer, reduce) in contestants.items():

                def prepare(buffer: Any = buffer) -> None:
                    buffer.copy_(fresh)
                    self.group.barrier()

                spans_by_name[name].append(spans_of(reduce, repeats, prepare))
                results[name] = (gloo_buffer if name == "gloo" else buckets[name].result).clone()
            for result in results.values():
                torch.testing.assert_close(result, results["gloo"], atol=1e-5, rtol=1e-5)
            self.group.barrier()
            copy = functools.partial(np.copyto, target, source)
            spans_by_name["copy"].append(spans_of(copy, repeats if self.rank == 0 else 0))
            self.group.barrier()
        return {name: spans[1:] for name, spans in spans_by_name.items()}

    def close(self) -> None:
        import torch.distributed as dist

        self.group.barrier()
        for group in self.groups.values():
            group.close()
        dist.destroy_process_group()


def layout(ranks: int) -> list[int]:
    """Returns each rank's device: 2 devices for up to 4 ranks, otherwise 2 ranks on each device."""
    per_device = max(1, ranks // 2) if ranks <= 4 else 2
    return [rank // per_device for rank in range(ranks)]


def cores_of(rank: int, ranks: int) -> tuple[int, ...]:
    """Returns an even share of the cores, or one of them when there are more ranks."""
    cores = sorted(os.sched_getaffinity(0))
    start, stop = (len(cores) * r // ranks for r in (rank, rank + 1))
    return tuple(cores[start : max(stop, start + 1)])


def measure(ranks: int, sizes: list[int], rounds: int, repeats: int) -> None:
    """Measures all rows of one number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        members, devices = [f"rank {rank}" for rank in range(ranks)], layout(ranks)
        groups = {"ours": create_group(members, devices)}
        for strategy in STRATEGIES:
            groups[strategy] = create_group(members, devices, strategy=strategy, directory=folder)
        actors = [
            runtime.remote(Rank)
            .options(name=f"rank{rank}", cores=cores_of(rank, ranks), num_threads=1)
            .remote(groups, rank, f"{folder}/store")
            for rank in range(ranks)
        ]
        try:
            for nbytes in sizes:
                times = max(3, min(repeats, LONGEST_BYTES // nbytes))
                answers = runtime.get(
                    [actor.run.remote(nbytes, rounds, times) for actor in actors], timeout=600
                )
                report(ranks, nbytes, answers, times, openmpi(ranks, nbytes, rounds, times))
            runtime.get([actor.close.remote() for actor in actors], timeout=60)
        finally:
            runtime.kill(actors)


def report(
    ranks: int, nbytes: int, answers: list[dict[str, list[Spans]]], repeats: int, mpi: list[float]
) -> None:
    """Emits a row for each peer."""
    ours = medians(answers, "ours", latency)
    call = statistics.median(medians(answers, "ours", longest_call))
    peers = {"gloo": medians(answers, "gloo", latency), "copy": copy_medians(answers[0]["copy"])}
    if mpi:
        peers["openmpi"] = mpi
    for strategy in STRATEGIES:
        peers[strategy] = medians(answers, strategy, latency)
    devices = layout(ranks)
    shape = f"{len(set(devices))}x{devices.count(0)}"
    for peer, peer_latencies in peers.items():
        name = f"k{ranks}/{nbytes}B/{peer}"
        if peer in STRATEGIES:
            name = f"strategies/{shape}/{nbytes}B/{peer}"
        emit_pairs(
            "reduction", name, "us", ours, peer_latencies, smaller_is_better=True,
            repeats=len(ours) * repeats, rounds=len(ours), call_us=round(call, 1),
        )  # fmt: skip


def medians(answers: list[dict[str, list[Spans]]], name: str, of: Any) -> list[float]:
    """Returns the median microseconds of each round over its repetitions."""
    rounds = zip(*(answer[name] for answer in answers), strict=True)
    return [statistics.median(map(of, zip(*ranks, strict=True))) * 1e6 for ranks in rounds]


def copy_medians(rounds: list[Spans]) -> list[float]:
    return [statistics.median(end - begin for begin, end in spans) * 1e6 for spans in rounds]


def latency(spans: tuple[tuple[float, float], ...]) -> float:
    """Returns the seconds from the begin of the last rank to the end of the last one."""
    return max(end for _, end in spans) - max(begin for begin, _ in spans)


def longest_call(spans: tuple[tuple[float, float], ...]) -> float:
    return max(end - begin for begin, end in spans)


_MPI = """
import statistics, sys, time
import numpy as np
from mpi4py import MPI
numel, rounds, repeats = map(int, sys.argv[1:])
comm = MPI.COMM_WORLD
fresh, own = np.ones(numel, np.float32), np.zeros(numel, np.float32)
for number in range(rounds + 1):
    begins, ends = np.zeros(repeats), np.zeros(repeats)
    for i in range(repeats):
        own[:] = fresh
        comm.Barrier()
        begins[i] = time.monotonic()
        comm.Allreduce(MPI.IN_PLACE, own)
        ends[i] = time.monotonic()
    for times in (begins, ends):
        comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    if number and comm.rank == 0:
        print(np.median(ends - begins) * 1e6)
"""


def openmpi(ranks: int, nbytes: int, rounds: int, repeats: int) -> list[float]:
    """Returns the median microseconds of each round; [] when MPI is not installed."""
    if not (shutil.which("mpiexec") and importlib.util.find_spec("mpi4py")):
        return []
    settings = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    if os.getuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # With mpi4py's main an error in one rank ends all of them.
    arguments = [sys.executable, "-m", "mpi4py", "-c", _MPI]
    arguments += map(str, (nbytes // 4, rounds, repeats))
    completed = subprocess.run(
        ["mpiexec", "-n", str(ranks), *arguments],
        env=os.environ | settings, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return [float(line) for line in completed.stdout.split()]


def main() -> None:
    options_of = parser(__doc__, rounds=15)
    options_of.add_argument("--ranks", type=numbers, default=[2, 4, 8])
    options_of.add_argument("--bytes", type=numbers, default=DEFAULT_BYTES)
    options_of.add_argument("--repeats", type=int, default=40, help="in each round")
    options = options_of.parse_args()
    runtime.init(
        ["torch", "torch.distributed", "gmi_drl.comm.reducers.mrr", "gmi_drl.comm.reducers.har"]
    )
    try:
        for ranks in options.ranks:
            measure(ranks, options.bytes, options.rounds, options.repeats)
    finally:
        runtime.shutdown()


if __name__ == "__main__":
    main()
