#!/usr/bin/env python3
"""Measures reduction across hosts, beside gloo over all ranks, and the efficiency of training.

Claim: at the size of a policy, to reduce inside each host and then among leaders over
authenticated connections takes less time than gloo, which is not authenticated, over all ranks.
Where the network is trusted leaders reduce by gloo, too.

A host is a namespace of the network of this machine, joined to the others by a bridge; needs root
on Linux. Both contestants take turns in the same processes, round after round, timed from when
the last rank begins until the last one has the result. What is reduced is checked in each round.

On two cores the computing of 4 processes hides the network. For rows that show the network, an
iteration of training is --reductions sleeps of equal length, each followed by a reduction, with one
GMI on each host; the delay of each frame is netem's, or that of a relay. By
default sleeps and reductions are those of examples/paper/ant.yaml on an H100: 8 (2 minibatches, 4
epochs) in 254 ms, and four times as many. With agents apart each host has one more sleeper, which
hands its trainer a segment after each of its sleeps through a link of the host, two at most ahead.

Rows:
    2x2/276000B/gloo             us, 2 hosts with 2 GMIs; the ratio is gloo's time over ours
    2x2/276000B/trusted          us, by gloo among leaders; the ratio is the time by links over it
    3x1/276000B/100us/8x31.75ms  efficiency: time of the sleeps and one host's reductions over that
                                 of 3 hosts, or 2 or 4; `reduction_us` is what one reduction took
    3x1/276000B/100us/8x31.75ms/bare
                                 the same by bare sockets, with --bare: kept in hosts_bare.json
                                 beside what links keep in the same run
    3x1/276000B/100us/8x31.75ms/measured
                                 with --bare: by the way that leaders have measured to be the
                                 fastest; `note` has the times of each
    3x1/276000B/100us/8x31.75ms/bf16
                                 the same with comm.wire: bf16, half as many bytes
    3x(1+1)/276000B/100us/8x31.75ms/1.25
                                 the same of 3 hosts with an agent each, whose sleeps are 1.25 times
                                 as long as all of its trainer's for a segment

    bench/comm/hosts.py --bytes 100000,276000,1000000,4000000 --delays-us 100,1000
"""

from __future__ import annotations

import functools
import itertools
import socket
import statistics
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from reduction import Spans, latency, medians, spans_of
from report import emit_median, emit_pairs, fractions, numbers, parser

from cluster import Cluster, Network, why_no_network
from gmi_drl.comm.hosts.steps import all_reduce, usual_way

ANT_BYTES = 276_000
HOSTS = (2, 3, 4)
SEGMENT_BYTES = 1 << 20  # sent over a link, and not copied by the trainer
CONDITIONS = "hosts are namespaces of the network on one machine, which nobody else used"


def gloo_of(group: Any, folder: str) -> Any:
    """Returns gloo over all ranks of all hosts, each at the address of its host."""
    import torch.distributed

    dist: Any = torch.distributed
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=group.spec.address)]
    store = dist.FileStore(f"{folder}/gloo", -1)
    return dist.ProcessGroupGloo(store, group.rank, group.size, options)


def compare(
    group: Any, sizes: list[int], rounds: int, repeats: int, folder: str
) -> dict[int, dict[str, list[Spans]]]:
    """Returns the spans of contestants by size and round, after a round that does not count."""
    import numpy as np
    import torch

    gloo = gloo_of(group, folder)
    answers = {}
    for nbytes in sizes:
        numel = nbytes // 4
        generator = np.random.default_rng(group.rank)
        fresh = torch.from_numpy(generator.standard_normal(numel, dtype=np.float32))
        bucket, gloo_buffer = group.bucket(f"gradient {nbytes}", numel), torch.zeros(numel)

        def reduce_by(least: int, bucket: Any = bucket) -> None:
            group.by_gloo_from = least
            bucket.reduce("sum")

        contestants = {
            "ours": (bucket.buffer, functools.partial(reduce_by, sys.maxsize)),
            "trusted": (bucket.buffer, functools.partial(reduce_by, 1)),
            "gloo": (gloo_buffer, lambda buffer=gloo_buffer: gloo.allreduce([buffer]).wait()),
        }
        spans_by_name: dict[str, list[Spans]] = {name: [] for name in contestants}
        for _ in range(rounds + 1):
            for name, (target, reduce) in contestants.items():

                def prepare(target: Any = target, fresh: Any = fresh) -> None:
                    target.copy_(fresh)
                    group.barrier()

                spans_by_name[name].append(spans_of(reduce, repeats, prepare))
            torch.testing.assert_close(bucket.result, gloo_buffer, atol=1e-5, rtol=1e-5)
        answers[nbytes] = {name: spans[1:] for name, spans in spans_by_name.items()}
    group.barrier()
    group.finish("done")
    return answers


def train(bucket: Any, reductions: int, sleep_s: float) -> float:
    """Sleeps and reduces in turn, as an update does; returns the mean seconds of a reduction."""
    reducing_s = 0.0
    for _ in range(reductions):
        time.sleep(sleep_s)
        begun = time.monotonic()
        bucket.reduce("mean")
        reducing_s += time.monotonic() - begun
    return reducing_s / reductions


class BareSockets:
    """Sums by the same steps over tcp as it is: nothing is authenticated, encrypted or checked."""

    def __init__(self, group: Any, numel: int) -> None:
        import numpy as np

        way = usual_way(group.size, 4 * numel)
        self.steps = all_reduce(way, group.rank, group.size, numel)
        self.vector = np.zeros(numel, np.float32)
        self.received = np.zeros(numel, np.float32)
        self.sockets: dict[int, socket.socket] = {}
        with socket.create_server((group.spec.address, 0)) as server:
            ports = group.bucket("ports", group.size)
            ports.buffer.zero_()
            ports.buffer[group.rank] = server.getsockname()[1]
            ports.reduce("sum")
            network = group.spec.address.rpartition(".")[0]
            for peer in range(group.rank):  # those of higher ranks connect to those of lower ones
                address = f"{network}.{peer + 1}", int(ports.result[peer])
                self._join(peer, socket.create_connection(address, 60))
                self.sockets[peer].sendall(bytes([group.rank]))
            while len(self.sockets) < group.size - 1:
                connection, _ = server.accept()
                self._join(connection.recv(1)[0], connection)

    def _join(self, peer: int, connection: socket.socket) -> None:
        connection.settimeout(60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)  # no send waits
        self.sockets[peer] = connection

    def reduce(self, _: str) -> None:
        """Sums the vector over all hosts."""
        for step in self.steps:
            for peer, start, stop in step.sends:
                self.sockets[peer].sendall(self.vector[start:stop].data)
            for peer, start, stop in step.receives:
                target = (self.received if step.adds else self.vector)[start:stop]
                view, taken = memoryview(target).cast("B"), 0
                while taken < len(view):
                    taken += self.sockets[peer].recv_into(view[taken:])
                if step.adds:
                    self.vector[start:stop] += target


def iterate(
    group: Any, nbytes: int, reductions: int, sleep_s: float, iterations: int, is_bare: bool = False
) -> tuple[list[tuple[float, float]], str]:
    """Returns the seconds of each iteration, with the mean of a reduction in it, and a note."""
    numel = nbytes // 4
    bucket = BareSockets(group, numel) if is_bare else group.bucket("gradient", numel)
    durations = []
    for _ in range(iterations + 3):
        begin = time.monotonic()
        reduce_s = train(bucket, reductions, sleep_s)
        durations.append((time.monotonic() - begin, reduce_s))
    note = group.note
    group.finish("done")
    return durations[3:], note


def iterate_apart(
    group: Any, nbytes: int, reductions: int, sleep_s: float, iterations: int, rollout_s: float
) -> tuple[list[tuple[float, float]], str]:
    """Returns the same of a trainer whose agent, a thread, takes `rollout_s` for a segment."""
    from gmi_drl.comm.errors import LinkEnded
    from gmi_drl.comm.transports import StreamSpec, create_link, wait_any

    link, bucket = create_link("agent", "trainer"), group.bucket("gradient", nbytes // 4)
    streams, timeout = [StreamSpec(SEGMENT_BYTES, 2)], timedelta(seconds=60)

    def collect() -> None:
        with link.sender(b"segments", streams, timeout) as sender:
            for number in itertools.count():
                time.sleep(rollout_s)
                try:
                    slot = sender.reserve(0)
                except LinkEnded:
                    return
                sender.send(slot, SEGMENT_BYTES, sequence=number, step=0, policy_version=0)

    agent, durations = threading.Thread(target=collect, daemon=True), []
    with link.receiver(timeout) as receiver:
        agent.start()
        for _ in range(iterations + 3):
            begin = time.monotonic()
            while (packet := receiver.poll()) is None:
                if not wait_any([receiver], timeout):
                    raise TimeoutError("the agent has sent no segment within 60 s")
            reduce_s = train(bucket, reductions, sleep_s)
            receiver.release(packet)
            durations.append((time.monotonic() - begin, reduce_s))
    agent.join(60)
    group.finish("done")
    return durations[3:], ""


def outcomes_of(within_s: float, *arguments: Any, **options: Any) -> list[Any]:
    """Returns what each process of a cluster has returned, or raises what one has raised."""
    with Cluster(*arguments, **options) as cluster:
        outcomes = cluster.outcomes(within_s=within_s)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


def main() -> None:
    options_of = parser(__doc__, rounds=9, iterations=30)
    add = options_of.add_argument
    add("--bytes", type=numbers, default=[100_000, 276_000, 1_000_000, 4_000_000])
    add("--delays-us", type=numbers, default=[100, 1000])
    add("--reductions", type=numbers, default=[8, 32], help="an iteration")
    add("--bare", action="store_true", help="by links, each wire format, and bare sockets")
    add("--together", type=int, default=1, help="0: no rows of agents in place")
    add("--agents", type=fractions, default=[1.0, 1.25],
        help="sleeps of agents apart over those of trainers")  # fmt: skip
    add("--iteration-ms", type=float, default=254.0, help="all sleeps of one")
    add("--repeats", type=int, default=20, help="in each round")
    add("--conditions", default=CONDITIONS, help="kept beside the rows")
    options = options_of.parse_args()
    if why := why_no_network():
        sys.exit(f"{why}. Run it as root, on Linux.")
    fields: dict[str, Any] = {"conditions": options.conditions}
    if options.bytes and not options.bare:
        with tempfile.TemporaryDirectory() as folder, Network(2) as network:
            answers = outcomes_of(
                600, compare, (2, 2), options.bytes, options.rounds, options.repeats, folder,
                network=network, spec={"trusted": True},
            )  # fmt: skip
        for nbytes in options.bytes:
            spans = [answer[nbytes] for answer in answers]
            times = {name: medians(spans, name, latency) for name in ("ours", "gloo", "trusted")}
            for row, *pair in (("gloo", "ours", "gloo"), ("trusted", "trusted", "ours")):
                emit_pairs(
                    "hosts", f"2x2/{nbytes}B/{row}", "us", *(times[name] for name in pair),
                    repeats=options.rounds * options.repeats, rounds=options.rounds,
                    smaller_is_better=True, **fields,
                )  # fmt: skip
    for delay_us in options.delays_us:
        for reductions in options.reductions:
            sleep_s = options.iteration_ms / 1e3 / reductions
            arguments = (ANT_BYTES, reductions, sleep_s, options.iterations)
            name = f"{ANT_BYTES}B/{delay_us}us/{reductions}x{sleep_s * 1e3:g}ms"
            if options.bare:
                emit_kept(f"{{}}x1/{name}", delay_us, iterate, arguments, fields, "hosts_bare")
                for suffix, wire in (("measured", "fp32"), ("bf16", "bf16")):
                    emit_kept(
                        f"{{}}x1/{name}/{suffix}", delay_us, iterate, arguments, fields,
                        "hosts_bare", spec={"measures": True}, wire=wire,
                    )  # fmt: skip
                bare = (*arguments, True)
                emit_kept(f"{{}}x1/{name}/bare", delay_us, iterate, bare, fields, "hosts_bare")
                continue
            if options.together:
                emit_kept(f"{{}}x1/{name}", delay_us, iterate, arguments, fields)
            for factor in options.agents:
                apart = (*arguments, factor * options.iteration_ms / 1e3)
                emit_kept(f"{{}}x(1+1)/{name}/{factor:g}", delay_us, iterate_apart, apart, fields)


def emit_kept(
    name: str, delay_us: int, body: Any, arguments: Any, given: Any, bench: str = "hosts",
    **options: Any,
) -> None:  # fmt: skip
    """Emits the efficiency of two to four hosts, in terms of one host's throughput."""
    durations, notes = {}, {}
    for count in (1, *HOSTS):
        with Network(count, delay_us / 1e6) as network:
            outcomes = outcomes_of(100, body, (1,) * count, *arguments, network=network, **options)
        durations[count], notes[count] = outcomes[0]
    alone = statistics.median(seconds[0] for seconds in durations[1])
    for count in HOSTS:
        emit_median(
            bench, name.format(count), "of one host's throughput",
            [alone / seconds[0] for seconds in durations[count]], digits=3,
            reduction_us=round(statistics.median(seconds[1] for seconds in durations[count]) * 1e6),
            **given, **({"note": notes[count]} if notes[count] else {}),
        )  # fmt: skip


if __name__ == "__main__":
    main()
