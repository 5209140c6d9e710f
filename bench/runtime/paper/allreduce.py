"""Measures figure 12: an all-reduce written on the API, against gloo of torch.distributed.

Each actor has an array; it is cut into as many parts as there are actors. The sum of a part
travels round the ring from actor to actor; then every actor copies all the sums out of the object
store. Gloo runs in as many processes, with one thread each.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rows.base import GET_S, Side, seconds

from .base import COLORS, Curves, Figure, Headline, Series, plot, size_axis

_SIZES = (1_000_000, 10_000_000, 100_000_000)  # bytes of float32 an actor has
_RANKS = 2
_LABELS = {"ours": "ours, a ring of actors", "ray": "Ray, the same ring", "gloo": "torch gloo"}


class Member:
    """One array of the ring."""

    def __init__(self, rank: int, nbytes: int) -> None:
        self.values = np.full(nbytes // 4, rank + 1, np.float32)
        self.parts = np.array_split(self.values, _RANKS)
        self.own = (rank + 1) % _RANKS  # the part whose sum is completed here

    def part(self, index: int) -> Any:
        return self.parts[index]

    def plus(self, index: int, incoming: Any) -> Any:
        return np.add(self.parts[index], incoming, out=self.parts[index])

    def take(self, *sums: Any) -> None:
        for index, total in enumerate(sums):
            if index != self.own:
                np.copyto(self.parts[index], total)


def all_reduce(side: Side, members: list[Any]) -> None:
    """Reduces the arrays so that every member has the sum of all arrays."""
    size = len(members)
    sums = [members[p].part.remote(p) for p in range(size)]
    for step in range(1, size):
        sums = [members[(p + step) % size].plus.remote(p, sums[p]) for p in range(size)]
    side.get([member.take.remote(*sums) for member in members])


def _repeats(nbytes: int, quick: bool) -> int:
    return 2 if quick else max(7, min(50, 400_000_000 // nbytes))


def _measure(name: str, quick: bool) -> Series:
    side, points = Side(name, quick), []
    with side.running():
        for nbytes in _SIZES:
            members = [side.actor(Member).remote(rank, nbytes) for rank in range(_RANKS)]
            for _ in range(2):
                all_reduce(side, members)
            times = [
                seconds(partial(all_reduce, side, members)) for _ in range(_repeats(nbytes, quick))
            ]
            points.append((float(nbytes), statistics.median(times)))
            value = side.get(members[0].part.remote(0))[0]
            expected = sum(range(1, _RANKS + 1)) * float(_RANKS) ** (1 + len(times))
            if not np.isclose(value, expected, rtol=1e-4):
                raise RuntimeError(f"the sum is {value}; it should be {expected}.")
            for member in members:
                side.api.kill(member)
    return {_LABELS[name]: points}


def gloo_rank(rank: int, folder: str, quick: bool, pipe: Connection) -> None:
    """Runs one process of gloo, which sends its median seconds for each size."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=_RANKS
    )
    points = []
    for nbytes in _SIZES:
        tensor = torch.zeros(nbytes // 4)
        times = []
        for _ in range(2 + _repeats(nbytes, quick)):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - begin)
        points.append((float(nbytes), statistics.median(times[2:])))
    pipe.send(points)
    dist.destroy_process_group()


def _gloo(quick: bool) -> Series:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(_RANKS)]
        ranks = [
            context.Process(target=gloo_rank, args=(rank, folder, quick, writer), daemon=True)
            for rank, (_, writer) in enumerate(pipes)
        ]
        for process in ranks:
            process.start()
        if not pipes[0][0].poll(GET_S):
            raise RuntimeError(f"gloo has not answered within {GET_S:g} s.")
        points = pipes[0][0].recv()
        for process in ranks:
            process.join()
    return {_LABELS["gloo"]: points}


def _draw(curves: Curves, picture: Any) -> None:
    axes = picture.subplots()
    colors = dict(zip(_LABELS.values(), ("ours", "ray", "peer"), strict=True))
    for label, curve in curves.items():
        plot(axes, curve, label, COLORS[colors[label]])
    size_axis(axes, _SIZES)
    axes.set(yscale="log", xlabel="size of each array", ylabel="time of an all-reduce (s)")
    axes.set_title(f"Sum of {_RANKS} arrays in {_RANKS} processes")
    axes.legend(fontsize="small")


FIGURE = Figure(
    "12", "allreduce", (6, 4),
    {"ours": partial(_measure, "ours"), "ray": partial(_measure, "ray"), "gloo": _gloo}, _draw,
    Headline(
        "all_reduce_100MB/gloo", "s", _LABELS["ours"], _LABELS["gloo"],
        lambda curve: curve.at(_SIZES[-1]), smaller_is_better=True,
    ),
)  # fmt: skip
