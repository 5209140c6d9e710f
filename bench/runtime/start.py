#!/usr/bin/env python3
"""Measures start times and memory of GMIs, beside those of multiprocessing's processes.

Claim: after the first, a GMI is ready in less than 0.1 s (the paper has 0.05 s), because the fork
server has done its imports; a process of multiprocessing's `spawn` does them each time. What is
timed is the same on both sides: from asking for a process with torch, MuJoCo and Gymnasium
imported to its first answer.

Rows:
    first/spawn          init() and one GMI, against the first spawned process
    further/spawn        each further GMI, against each further spawned process
    further/forkserver   the same against multiprocessing's own fork server with the same preload
    together/spawn       all GMIs asked for at once, until every one has answered
    memory/spawn         proportional set size of a GMI that has computed, with the fork server's
                         own share divided among them
    import/torch         import of gmi_drl.runtime, against that of torch (what a driver that
                         needed torch would pay)

    bench/runtime/start.py --gmis 8 --rounds 5
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from report import emit_pairs, parser

from gmi_drl import runtime

MODULES = ("numpy", "torch", "mujoco", "gymnasium")
MIB = 2.0**20


class Gmi:
    """Answers with its pid once everything is imported, after a little work of each library."""

    def __init__(self) -> None:
        import_all()

    def pid(self) -> int:
        return os.getpid()

    def work(self) -> int:
        work()
        return os.getpid()


def import_all() -> None:
    for name in MODULES:
        __import__(name)


def work() -> None:
    """Does the least that every GMI does: a network's forward and backward, a step of physics."""
    import mujoco
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ELU(), torch.nn.Linear(64, 8))
    network(torch.zeros(16, 64)).sum().backward()
    body = "<body><freejoint/><geom size='1'/></body>"
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    mujoco.mj_step(model, mujoco.MjData(model))


def serve(pipe: Connection) -> None:
    """Answers like `Gmi` through a pipe, in the peer's process."""
    import_all()
    while (request := pipe.recv()) is not None:
        if request == "work":
            work()
        pipe.send(os.getpid())


@contextmanager
def gmis() -> Iterator[Callable[[], Callable[[str], int]]]:
    """Yields a function that starts a GMI, and returns a function to call it."""
    runtime.init(MODULES)
    gmi = runtime.remote(Gmi).options(num_threads=1)

    def start() -> Callable[[str], int]:
        handle = gmi.remote()

        def call(method: str) -> int:
            return runtime.get(getattr(handle, method).remote())

        return call

    try:
        yield start
    finally:
        runtime.shutdown()


@contextmanager
def peers(method: str) -> Iterator[Callable[[], Callable[[str], int]]]:
    """Yields the same for a start method of multiprocessing."""
    context: Any = multiprocessing.get_context(method)
    started = []

    def start() -> Callable[[str], int]:
        parent, child = context.Pipe()
        process = context.Process(target=serve, args=(child,))
        process.start()
        child.close()
        started.append((process, parent))

        def call(request: str) -> int:
            parent.send(request)
            return parent.recv()

        return call

    try:
        yield start
    finally:
        for process, parent in started:
            parent.send(None)
            process.join()


def one_by_one(start: Callable[[], Callable[[str], int]], number: int) -> list[float]:
    """Returns the seconds from asking for each process to its answer, one after the other."""
    times = []
    for _ in range(number):
        begin = time.perf_counter()
        start()("pid")
        times.append(time.perf_counter() - begin)
    return times


def together(start: Callable[[], Callable[[str], int]], number: int) -> float:
    """Returns the seconds until all have answered that are asked for at once."""
    begin = time.perf_counter()
    for call in [start() for _ in range(number)]:
        call("pid")
    return time.perf_counter() - begin


def memory(start: Callable[[], Callable[[str], int]], number: int, server: int | None) -> float:
    """Returns the bytes of a process when all have worked; shared pages count in parts."""
    pids = [call("work") for call in [start() for _ in range(number)]]
    pids += [server] if server else []
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids) / number


def import_s(module: str) -> float:
    """Returns the seconds of an import in a fresh interpreter, measured inside."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def forget_fork_server() -> None:
    """Ends multiprocessing's fork server, so that the next round starts a fresh one."""
    from multiprocessing import forkserver

    forkserver._forkserver._stop()


def measure(number: int) -> dict[str, list[float]]:
    """Measures one round: every quantity of both sides, in turn."""
    quantities: dict[str, list[float]] = {}
    begin = time.perf_counter()
    with gmis() as start:
        start()("pid")
        quantities["first"] = [time.perf_counter() - begin]
        quantities["further"] = one_by_one(start, number)
        quantities["together"] = [together(start, number)]
    with gmis() as start:
        quantities["memory"] = [memory(start, number, runtime.preloaded().pid)]
    begin = time.perf_counter()
    with peers("spawn") as start:
        start()("pid")
        quantities["first/spawn"] = [time.perf_counter() - begin]
        quantities["further/spawn"] = one_by_one(start, min(number, 3))
        quantities["together/spawn"] = [together(start, number)]
    with peers("spawn") as start:
        quantities["memory/spawn"] = [memory(start, number, None)]
    with peers("forkserver") as start:
        start()("pid")
        quantities["further/forkserver"] = one_by_one(start, number)
    forget_fork_server()
    quantities["import"] = [import_s("gmi_drl.runtime")]
    quantities["import/torch"] = [import_s("torch")]
    return quantities


def main() -> None:
    arguments = parser(__doc__, gmis=8, rounds=5).parse_args()
    multiprocessing.set_forkserver_preload(list(MODULES))
    rounds = [measure(arguments.gmis) for _ in range(arguments.rounds)]
    for row in (name for name in rounds[0] if "/" in name):
        quantity = row.split("/")[0]
        scale, unit = (MIB, "MiB") if quantity == "memory" else (1.0, "s")
        ours = [statistics.median(quantities[quantity]) / scale for quantities in rounds]
        peer_values = [statistics.median(quantities[row]) / scale for quantities in rounds]
        worst = max(max(quantities[quantity]) for quantities in rounds) / scale
        emit_pairs(
            "runtime_start", row, unit, ours, peer_values,
            smaller_is_better=True, digits=4, gmis=arguments.gmis, worst=round(worst, 4),
        )  # fmt: skip


if __name__ == "__main__":
    main()
