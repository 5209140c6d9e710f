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

import argparse
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

from reduction import latency, medians
from report import emit, emit_pairs

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
) -> dict[int, dict[str, list[list[tuple[float, float]]]]]:
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
            "ours": (bucket.buffer, lambda: reduce_by(sys.maxsize)),
            "trusted": (bucket.buffer, lambda: reduce_by(1)),
            "gloo": (gloo_buffer, lambda buffer=gloo_buffer: gloo.allreduce([buffer]).wait()),
        }
        spans_of: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in contestants}
        for _ in range(rounds + 1):
            for name, (target, reduce) in contestants.items():
                spans = []
                for _ in range(repeats):
                    target.copy_(fresh)
                    group.barrier()
                    begin = time.monotonic()
                    reduce()
                    spans.append((begin, time.monotonic()))
                spans_of[name].append(spans)
            torch.testing.assert_close(bucket.result, gloo_buffer, atol=1e-5, rtol=1e-5)
        answers[nbytes] = {name: spans[1:] for name, spans in spans_of.items()}
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


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",") if part]

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bytes", type=numbers, default=[100_000, 276_000, 1_000_000, 4_000_000])
    parser.add_argument("--delays-us", type=numbers, default=[100, 1000])
    parser.add_argument("--reductions", type=numbers, default=[8, 32], help="an iteration")
    parser.add_argument(
        "--bare", action="store_true", help="by links, by each wire format, and by bare sockets"
    )
    parser.add_argument("--together", type=int, default=1, help="0: no rows of agents in place")
    parser.add_argument(
        "--agents", type=lambda text: [float(part) for part in text.split(",") if part],
        default=[1.0, 1.25], help="sleeps of agents apart over those of trainers",
    )  # fmt: skip
    parser.add_argument("--iteration-ms", type=float, default=254.0, help="all sleeps of one")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=20, help="in each round")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--conditions", default=CONDITIONS, help="kept beside the rows")
    options = parser.parse_args()
    if why := why_no_network():
        sys.exit(f"{why}. Run it as root, on Linux.")
    fields: dict[str, Any] = {"conditions": options.conditions}
    if options.bytes and not options.bare:
        with (
            tempfile.TemporaryDirectory() as folder,
            Network(2) as network,
            Cluster(
                compare, (2, 2), options.bytes, options.rounds, options.repeats, folder,
                network=network, spec={"trusted": True},
            ) as cluster,
        ):  # fmt: skip
            answers = cluster.outcomes(within_s=600)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        for nbytes in options.bytes:
            spans = [answer[nbytes] for answer in answers]
            names = ("ours", "gloo", "trusted")
            ours, gloo, trusted = (medians(spans, name, latency) for name in names)
            emit_pairs(
                "hosts", f"2x2/{nbytes}B/gloo", "us", ours, gloo, smaller_is_better=True,
                repeats=options.rounds * options.repeats, rounds=options.rounds, **fields,
            )  # fmt: skip
            emit_pairs(
                "hosts", f"2x2/{nbytes}B/trusted", "us", trusted, ours, smaller_is_better=True,
                repeats=options.rounds * options.repeats, rounds=options.rounds, **fields,
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
        with (
            Network(count, delay_us / 1e6) as network,
            Cluster(body, (1,) * count, *arguments, network=network, **options) as cluster,
        ):
            outcomes = cluster.outcomes()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        durations[count], notes[count] = outcomes[0]
    alone = statistics.median(seconds[0] for seconds in durations[1])
    for count in HOSTS:
        efficiencies = [alone / seconds[0] for seconds in durations[count]]
        emit(
            bench, name.format(count),
            value=round(statistics.median(efficiencies), 3), unit="of one host's throughput",
            peer=None, ratio=None, repeats=len(efficiencies),
            spread=[round(min(efficiencies), 3), round(max(efficiencies), 3)],
            reduction_us=round(statistics.median(seconds[1] for seconds in durations[count]) * 1e6),
            **given, **({"note": notes[count]} if notes[count] else {}),
        )  # fmt: skip


if __name__ == "__main__":
    main()
