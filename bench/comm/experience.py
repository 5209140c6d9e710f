#!/usr/bin/env python3
"""Measures ways to carry experience between processes, and to cut it into messages.

Claim: in shared memory, a horizon of experience costs about one copy of it, many times less than by
queues and sockets; joining messages pays where each message costs much, and not everywhere.

256 environments, observations of 60, actions of 8, reward, done, log-prob and value, float32: 73 KB
a step, 16 steps a horizon. The producer has its tensors ready and gives them to the transport; the
consumer copies what arrives into its own tensors. Four ways to cut a horizon into messages:
    ucc      one message a tensor a step        step     one a step
    mcc      one a channel a horizon            horizon  one
Timed by the consumer from one horizon to the next while the producer sends as fast as it can, all
contestants in turns, round after round. What arrives is compared with what was sent once a round.
The plain copy is one process's, of the same tensors, message by message.

Rows, in microseconds a horizon; ratio = peer's time over ours:
    mcc/ring/mp_queue    ours over the peer: ring, tcp (with CURVE) against copy (below 1: how
                         far from it), mp_queue, torch_queue, zmq_copy (plain ipc, send_multipart)
                         and ray (objects of its store, if it is installed)
    3to1/horizon/ring/mp_queue     three producers, one consumer, horizons of all of them
    mcc_over_ucc/ring              the paper's Table 8: one way of cutting over the other

    bench/comm/experience.py --rounds 7
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from carriers import CARRIERS, Carrier  # also imported by name in the producers' processes
from report import emit_pairs, parser, say

CHANNELS = {"observation": 60, "action": 8, "reward": 1, "done": 1, "log_prob": 1, "value": 1}
NUM_ENV = 256
STEPS = 16
MODES = ("ucc", "step", "mcc", "horizon")
OURS = ("ring", "tcp")
Result = dict[str, float]


def horizon(seed: int) -> dict[str, Any]:
    """Returns the tensors of one horizon [STEPS, NUM_ENV, width]."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn((STEPS, NUM_ENV, width), generator=generator)
        for name, width in CHANNELS.items()
    }


def messages(mode: str, tensors: dict[str, Any]) -> list[tuple[int, list[Any]]]:
    """Returns (stream, the tensors of one message) in the order of sending."""
    rows = list(tensors.values())
    if mode == "horizon":
        return [(0, rows)]
    if mode == "mcc":
        return [(stream, [row]) for stream, row in enumerate(rows)]
    steps = range(STEPS)
    if mode == "step":
        return [(0, [row[step] for row in rows]) for step in steps]
    return [(0, [row[step]]) for step in steps for row in rows]


def produce(carrier: Carrier, mode: str, horizons: int, seed: int) -> None:
    """Sends all horizons, in a producer's process."""
    import torch

    torch.set_num_threads(1)
    cut = messages(mode, horizon(seed))
    send = carrier.sender([(stream, sum(map(_nbytes, parts))) for stream, parts in cut])
    for number in range(horizons):
        for index, (stream, parts) in enumerate(cut):
            send(stream, parts, number * len(cut) + index)
    carrier.finish()


def consume(carriers: list[Carrier], mode: str, horizons: int) -> Result:
    """Receives all horizons into tensors of its own; returns the time and the CPU time of one."""
    import torch

    targets = [
        messages(mode, {n: torch.zeros_like(t) for n, t in horizon(0).items()}) for _ in carriers
    ]
    received = [0] * len(carriers)
    total, first = horizons * len(carriers) * len(targets[0]), len(targets[0]) * len(carriers)
    receive = type(carriers[0]).receiver(carriers)
    begin_s = cpu_s = 0.0
    for count in range(total):
        if count == first:  # the first horizon does not count: processes start, pages are touched
            begin_s, cpu_s = time.monotonic(), time.process_time()
        producer, sequence, copy_out = receive()
        copy_out(targets[producer][sequence % len(targets[0])][1])
        received[producer] += 1
    end_s = time.monotonic()
    for producer, cut in enumerate(targets):
        for (_, copies), (_, sent) in zip(cut, messages(mode, horizon(producer)), strict=True):
            assert all(map(torch.equal, copies, sent)), f"{mode}: what arrived is not what was sent"
    assert received == [horizons * len(targets[0])] * len(carriers)
    segments = (horizons - 1) * len(carriers)
    cpu_s = time.process_time() - cpu_s
    return {"us": (end_s - begin_s) / segments * 1e6, "cpu_s": cpu_s / segments}


def run(kind: str, mode: str, horizons: int, producers: int) -> Result:
    """Runs one contestant once."""
    if kind == "ray":
        import by_ray

        cuts = [messages(mode, horizon(seed)) for seed in range(producers)]
        return by_ray.run(cuts, horizons)
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        carriers = CARRIERS[kind].make(context, Path(folder), producers)
        processes = [
            context.Process(target=produce, args=(carrier, mode, horizons, seed))
            for seed, carrier in enumerate(carriers)
        ]
        for process in processes:
            process.start()
        try:
            result = consume(carriers, mode, horizons)
        finally:
            for carrier in carriers:
                carrier.done()
            for process in processes:
                process.join(30)
                if process.is_alive():
                    process.kill()
                    process.join()
    return result


def copy(mode: str, horizons: int) -> Result:
    """Measures the floor: the same tensors copied in one process, message by message."""
    import torch

    cut = messages(mode, horizon(0))
    targets = messages(mode, {n: torch.zeros_like(t) for n, t in horizon(0).items()})
    begin_s, cpu_s = time.monotonic(), time.process_time()
    for _ in range(horizons):
        for (_, sources), (_, copies) in zip(cut, targets, strict=True):
            for source, target in zip(sources, copies, strict=True):
                target.copy_(source)
    return {
        "us": (time.monotonic() - begin_s) / horizons * 1e6,
        "cpu_s": (time.process_time() - cpu_s) / horizons,
    }


def transports(modes: list[str], kinds: list[str], rounds: int, horizons: int) -> None:
    """Measures and emits all rows."""
    nbytes = STEPS * NUM_ENV * 4 * sum(CHANNELS.values())
    times: dict[tuple[str, str], list[Result]] = {}
    jobs: list[tuple[str, str, Callable[[], Result]]] = []
    for mode in modes:
        jobs.append((mode, "copy", lambda mode=mode: copy(mode, horizons)))
        for kind in kinds:
            jobs.append((mode, kind, lambda m=mode, k=kind: run(k, m, horizons, 1)))
    for kind in kinds:
        jobs.append(("3to1/horizon", kind, lambda kind=kind: run(kind, "horizon", horizons, 3)))
    for number in range(rounds):
        for mode, kind, job in jobs:
            times.setdefault((mode, kind), []).append(job())
            say(f"round {number + 1}: {mode} {kind} {times[mode, kind][-1]['us']:.0f} us")
    for (mode, our_kind), results in times.items():
        for (peer_mode, peer), peer_results in times.items():
            if our_kind in OURS and peer_mode == mode and peer not in OURS:
                row(f"{mode}/{our_kind}/{peer}", results, peer_results, nbytes, mode)
    for kind in kinds:
        if ("mcc", kind) in times and ("ucc", kind) in times:
            row(f"mcc_over_ucc/{kind}", times["mcc", kind], times["ucc", kind], nbytes, "mcc")


def row(name: str, results: list[Result], peer: list[Result], nbytes: int, mode: str) -> None:
    """Emits a row."""
    ours, peers = ([result["us"] for result in side] for side in (results, peer))
    cpu_s = statistics.median(result["cpu_s"] for result in results)
    value = statistics.median(ours)
    per_horizon = len(messages(mode.rpartition("/")[2], horizon(0)))
    emit_pairs(
        "experience", name, "us/horizon", ours, peers, smaller_is_better=True,
        bytes_per_s=round(nbytes / value * 1e6), messages_per_s=round(per_horizon / value * 1e6),
        consumer_cpu_s_per_gb=round(cpu_s / nbytes * 1e9, 4),
    )  # fmt: skip


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def main() -> None:
    def names(text: str) -> list[str]:
        return text.split(",")

    options_of = parser(__doc__, rounds=5)
    has_ray = ["ray"] if importlib.util.find_spec("ray") else []
    options_of.add_argument("--modes", type=names, default=list(MODES))
    options_of.add_argument("--kinds", type=names, default=[*CARRIERS, *has_ray])
    options_of.add_argument("--horizons", type=int, default=200, help="in each round")
    options = options_of.parse_args()
    import torch

    torch.set_num_threads(1)
    multiprocessing.set_forkserver_preload(["torch", "zmq", "gmi_drl.comm.transports.ring_ends"])
    transports(options.modes, options.kinds, options.rounds, options.horizons)


if __name__ == "__main__":
    main()
