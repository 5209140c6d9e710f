#!/usr/bin/env python3
"""Measures trainers whose experience comes from hosts that only sample, and the link it comes by.

Claim: a trainer whose agents are on other hosts keeps the throughput that it has with agents on its
own host, as agents wait neither for segments to arrive nor for policies.

A host is a namespace of the network of this machine, as in hosts.py; needs root on Linux. The delay
of each frame is netem's, or that of a relay, a process which takes its share of the cores.

One host trains, k others have an agent each. Two cores would hide the network behind computing: an
agent sleeps for its rollout, reads the newest policy of its host before, and sends a segment of
1 MB by a link, three at most under way; the trainer sleeps for its update, and publishes a policy
of 276 KB, which PolicySender and PolicyReceiver bring to the boards of the other hosts. In turns, k
agents on the trainer's own host do the same by rings and its board. By default rollouts take
254 ms, an iteration of examples/paper/ant.yaml on an H100, or a tenth of that; an update takes as
long as k agents need for a segment, or less.

The bare rate is that of one link without sleeps, in turns with a plain socket, where nothing is
encrypted or waited for; and then, where Ray is installed, in turns with an actor of a raylet on the
other host, which returns such a segment as an array from each call, three calls in flight.

Rows:
    1+2/1048576B/100us/254ms/1       what the trainer of two agents keeps of the segments a second
                                     that it takes from two on its own host; `lag`: how many
                                     versions behind the trainer's a segment is, on average, and
                                     `lag_local`; 1: the trainer takes 254 ms / 2 for a segment
    1+2/1048576B/100us/254ms/1.25    the same where rollouts take 1.25 times as long as updates
    bare/1048576B/100us/socket       MB/s of the link, beside the socket
    bare/1048576B/100us/ray          MB/s of the link, beside Ray

    bench/comm/crossing.py --agents 1,2,3 --delays-us 100,1000
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np
import torch
from report import (
    emit_median,
    emit_pairs,
    fractions,
    numbers,
    parser,
    ratios_of,
    spread_of,
)

import bodies_clusters
from cluster import Network, enter, why_no_network
from gmi_drl import runtime
from gmi_drl.comm.hosts.policies import PolicyReceiver, PolicySender
from gmi_drl.comm.shm.board import BoardSpec, create_board
from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.comm.transports import (
    CrossHostLinks,
    LinkSpec,
    StreamSpec,
    create_doorbell,
    create_link,
    wait_any,
)

SEGMENT_BYTES = 1 << 20
POLICY_BYTES = 276_000  # of Ant
IN_FLIGHT = 3  # experience.capacity
WARM_UP = 2  # segments of each agent that do not count, in each round
STREAMS = [StreamSpec(SEGMENT_BYTES, IN_FLIGHT)]
TIMEOUT = timedelta(seconds=60)
PRELOAD = [
    "torch", "gmi_drl.comm.shm.board", "gmi_drl.comm.transports.ring_ends",
    "gmi_drl.comm.transports.zeromq_ends",
]  # fmt: skip
CONDITIONS = "hosts are namespaces of the network on one machine, which nobody else used"


class Agent:
    """Sleeps for its rollouts, and sends a segment after each."""

    def __init__(self, namespace: str, link: LinkSpec, board: BoardSpec) -> None:
        enter(namespace)
        torch.set_num_threads(1)
        self.segment = torch.zeros(SEGMENT_BYTES, dtype=torch.uint8)
        self.policy = torch.zeros(POLICY_BYTES // 4)
        self.reader = board.reader()
        self.sender = link.sender(b"segments", STREAMS, TIMEOUT)

    def run(self, segments: int, rollout_s: float, late_s: float) -> None:
        time.sleep(late_s)
        self.reader.wait(-1, TIMEOUT)
        for number in range(segments):
            version = self.reader.read(self.policy)
            time.sleep(rollout_s)
            slot = self.sender.reserve(0)
            slot.memory.copy_(self.segment.fill_(number % 251))
            self.sender.send(
                slot, SEGMENT_BYTES, sequence=number, step=0, policy_version=version
            )  # fmt: skip


class Trainer:
    """Sleeps for its updates, and publishes a policy after each."""

    def __init__(self, namespace: str, ways: dict[str, tuple[list[LinkSpec], BoardSpec]]) -> None:
        """`ways`: the links of its agents, and its board, for those of other hosts and its own."""
        enter(namespace)
        torch.set_num_threads(1)
        self.policy = torch.zeros(POLICY_BYTES // 4)
        self.receivers = {
            way: [link.receiver(TIMEOUT) for link in links] for way, (links, _) in ways.items()
        }
        self.writers = {way: board.writer() for way, (_, board) in ways.items()}
        for writer in self.writers.values():
            writer.publish(0, self.policy)

    def run(self, way: str, segments: int, update_s: float) -> tuple[float, float]:
        """Trains on so many segments of each agent, and on those that do not count before.

        Returns segments a second, and how many versions behind they were on average.
        """
        receivers, writer = self.receivers[way], self.writers[way]
        arrived: collections.deque[Any] = collections.deque()
        lags, begun_s = [], 0.0
        for count in range((WARM_UP + segments) * len(receivers)):
            if count == WARM_UP * len(receivers):
                begun_s = time.monotonic()
                lags.clear()
            while True:
                for receiver in receivers:
                    while (packet := receiver.poll()) is not None:
                        arrived.append((receiver, packet))
                if arrived:
                    break
                if not wait_any(receivers, TIMEOUT):
                    raise TimeoutError("no agent has sent a segment within 60 s")
            receiver, packet = arrived.popleft()
            lags.append(writer.version() - packet.header.policy_version)
            time.sleep(update_s)
            ends = int(packet.memory[0]), int(packet.memory[-1])
            if set(ends) != {packet.header.sequence % 251}:
                raise RuntimeError(f"segment {packet.header.sequence} is not what was sent")
            receiver.release(packet)
            writer.publish(writer.version() + 1, self.policy)
        return len(lags) / (time.monotonic() - begun_s), statistics.mean(lags)


class There:
    """Makes an object on a host, where it runs."""

    def __init__(self, namespace: str, cls: type, *arguments: Any) -> None:
        enter(namespace)
        self.made = cls(*arguments)

    def run(self) -> Any:
        return self.made.run()


class Source:
    """Sends segments as fast as it can."""

    def __init__(self, namespace: str, link: LinkSpec, address: str) -> None:
        enter(namespace)
        torch.set_num_threads(1)
        self.sender = link.sender(b"segments", STREAMS, TIMEOUT)
        self.segment = bytes(SEGMENT_BYTES)
        self.address = address

    def send_link(self, segments: int, _port: int) -> None:
        for number in range(segments):
            slot = self.sender.reserve(0)
            self.sender.send(slot, SEGMENT_BYTES, sequence=number, step=0, policy_version=0)

    def send_socket(self, segments: int, port: int) -> None:
        with socket.create_connection((self.address, port), 60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(segments):
                connection.sendall(self.segment)


class Sink:
    """Receives segments, and returns how many MB came a second, from the first on."""

    def __init__(self, namespace: str, link: LinkSpec, address: str) -> None:
        enter(namespace)
        torch.set_num_threads(1)
        self.receiver = link.receiver(TIMEOUT)
        self.server = socket.create_server((address, 0))
        self.memory = memoryview(bytearray(SEGMENT_BYTES))
        self.producer: Any = None

    def port(self) -> int:
        return int(self.server.getsockname()[1])

    def receive_link(self, segments: int) -> float:
        begun_s = 0.0
        for number in range(segments):
            while (packet := self.receiver.poll()) is None:
                if not wait_any([self.receiver], TIMEOUT):
                    raise TimeoutError("no segment has come within 60 s")
            self.receiver.release(packet)
            begun_s = begun_s if number else time.monotonic()
        return _mb_per_s(segments - 1, begun_s)

    def receive_socket(self, segments: int) -> float:
        begun_s = 0.0
        connection, _ = self.server.accept()
        with connection:
            connection.settimeout(60)
            for number in range(segments):
                taken = 0
                while taken < SEGMENT_BYTES:
                    taken += connection.recv_into(self.memory[taken:])
                begun_s = begun_s if number else time.monotonic()
        return _mb_per_s(segments - 1, begun_s)

    def join_ray(self, address: str, other: str) -> None:
        """Joins a cluster of Ray, and makes an actor on its host of that address."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from gmi_drl.runtime.engines.ray import nodes

        class Producer:  # in here, so that its code travels
            def __init__(self) -> None:
                self.array = np.zeros(SEGMENT_BYTES, np.uint8)

            def segment(self) -> Any:
                return self.array

        nodes.join(address, trusted=False)
        (node,) = [n["NodeID"] for n in nodes.hosts() if n["NodeManagerAddress"] == other]
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        make: Any = ray.remote(num_cpus=1)(Producer)
        self.producer = make.options(scheduling_strategy=there).remote()

    def receive_ray(self, segments: int) -> float:
        import ray

        begun_s, method = 0.0, self.producer.segment
        calls = collections.deque(method.remote() for _ in range(IN_FLIGHT))
        for number in range(segments):
            array = ray.get(calls.popleft(), timeout=60)
            if array.nbytes != SEGMENT_BYTES:
                raise RuntimeError(f"{array.nbytes} bytes came instead of {SEGMENT_BYTES}")
            if number + IN_FLIGHT < segments:
                calls.append(method.remote())
            begun_s = begun_s if number else time.monotonic()
        return _mb_per_s(segments - 1, begun_s)

    def leave_ray(self) -> None:
        from gmi_drl.runtime.engines.ray import nodes

        nodes.leave()


def _mb_per_s(segments: int, begun_s: float) -> float:
    return segments * SEGMENT_BYTES / 1e6 / (time.monotonic() - begun_s)


def actor(cls: type, *arguments: Any, **options: Any) -> Any:
    """Starts an actor in a process that is pinned nowhere, and holds no CPU of the runtime's."""
    return runtime.remote(cls).options(num_cpus=0, num_threads=1, **options).remote(*arguments)


class Hosts:
    """The ends of links between the hosts of a network, which each makes of its own."""

    def __init__(self, network: Network, folder: str) -> None:
        self._names, self._own = network.names, []
        for host, address in enumerate(network.addresses):
            directory = Path(folder) / f"host{host}"
            directory.mkdir(mode=0o700)
            self._own.append(CrossHostLinks(address, directory))

    def link(self, source: int, target: int, *ends: str) -> tuple[LinkSpec, LinkSpec]:
        """Returns a link between two hosts, for its sender and for its receiver."""
        listening = threading.Thread(target=self._listen, args=(target, *ends))
        listening.start()  # in a thread, which goes into the namespace of that host
        listening.join()
        sending, receiving = self._own[source], self._own[target]
        return (
            sending.sender(*ends, receiving.peer_info), receiving.receiver(*ends, sending.peer_info)
        )  # fmt: skip

    def _listen(self, target: int, *ends: str) -> None:
        enter(self._names[target])
        self._own[target].listen(*ends)


def measure_training(
    agents: int, delay_us: int, rollout_s: float, factors: list[float], options: argparse.Namespace
) -> None:
    """Emits what a trainer keeps of its throughput when its agents are on other hosts."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Network(1 + agents, delay_us / 1e6) as network,
    ):
        hosts, doorbell = Hosts(network, folder), create_doorbell()
        trains, *sample = network.names
        board, local_board = create_board(), create_board()
        across = [hosts.link(host + 1, 0, f"agent {host}", "trainer") for host in range(agents)]
        back = [hosts.link(0, host + 1, "policies", f"host {host + 1}") for host in range(agents)]
        rings = [
            create_link(f"agent {host}", "trainer", doorbell=doorbell) for host in range(agents)
        ]
        boards = [create_board() for _ in sample]
        tally = create_tally(1, ["refused"])
        trainer = actor(
            Trainer, trains,
            {"across": ([there for _, there in across], board), "local": (rings, local_board)},
        )  # fmt: skip
        relays = [actor(There, trains, PolicySender, board, [here for here, _ in back])]
        relays += [
            actor(There, name, PolicyReceiver, link, its_board, tally, 0)
            for name, (_, link), its_board in zip(sample, back, boards, strict=True)
        ]
        carried = [relay.run.remote() for relay in relays]
        agents_of = {
            "across": [
                actor(Agent, name, link, its_board)
                for name, (link, _), its_board in zip(sample, across, boards, strict=True)
            ],
            "local": [actor(Agent, trains, ring, local_board) for ring in rings],
        }
        try:
            for factor in factors:
                update_s = rollout_s / agents / factor
                segments = max(4, round(options.round_s / rollout_s))
                rounds: dict[str, list[tuple[float, float]]] = {"across": [], "local": []}
                for _ in range(options.rounds):
                    for way, samples in rounds.items():
                        calls = [
                            one.run.remote(WARM_UP + segments, rollout_s, rollout_s * i / agents)
                            for i, one in enumerate(agents_of[way])
                        ]
                        trained = trainer.run.remote(way, segments, update_s)
                        samples.append(runtime.get([trained, *calls], timeout=300)[0])
                        runtime.get(runtime.wait(carried, num_returns=len(carried), timeout=0)[0])
                emit_training(agents, delay_us, rollout_s, factor, rounds, segments, options)
        finally:
            runtime.kill([trainer, *relays, *agents_of["across"], *agents_of["local"]])


def emit_training(
    agents: int, delay_us: int, rollout_s: float, factor: float,
    rounds: dict[str, list[tuple[float, float]]], segments: int, options: argparse.Namespace,
) -> None:  # fmt: skip
    kept = ratios_of(*([rate for rate, _ in rounds[way]] for way in ("across", "local")))
    rates, lags = (
        {way: statistics.median(sample[place] for sample in its) for way, its in rounds.items()}
        for place in (0, 1)
    )
    emit_median(
        "crossing", f"1+{agents}/{SEGMENT_BYTES}B/{delay_us}us/{rollout_s * 1e3:g}ms/{factor:g}",
        "of the throughput with agents on its host", kept, digits=3,
        segments_per_s=round(rates["across"], 2), segments_per_s_local=round(rates["local"], 2),
        lag=round(lags["across"], 2), lag_local=round(lags["local"], 2),
        segments=segments * agents, conditions=options.conditions,
    )  # fmt: skip


@contextlib.contextmanager
def ray_cluster(network: Network, token: dict[str, str]) -> Iterator[str]:
    """Yields the address of a cluster of Ray, a raylet on each host; the first has its head."""
    places = [
        f"{one}={address}" for one, address in zip(network.names, network.addresses, strict=True)
    ]
    program = subprocess.Popen(
        [sys.executable, bodies_clusters.__file__, str(len(places)), *places],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, **token},
    )  # fmt: skip
    try:
        yield next(line.strip() for line in program.stdout if ":" in line and " " not in line)
    finally:
        program.communicate("", timeout=60)


def measure_bare(delay_us: int, options: argparse.Namespace) -> None:
    """Emits the rate of a link beside those of a socket and of Ray."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        network = stack.enter_context(Network(2, delay_us / 1e6))
        trains, other = network.names
        sending, receiving = Hosts(network, folder).link(1, 0, "source", "sink")
        source = actor(Source, other, sending, network.addresses[0])
        sink = actor(Sink, trains, receiving, network.addresses[0], env=token)
        stack.callback(runtime.kill, [source, sink])
        emit_rates(delay_us, "socket", source, sink, options)
        if options.ray and importlib.util.find_spec("ray") is not None:
            address = stack.enter_context(ray_cluster(network, token))
            runtime.get(sink.join_ray.remote(address, network.addresses[1]), timeout=60)
            stack.callback(lambda: runtime.get(sink.leave_ray.remote(), timeout=60))
            emit_rates(delay_us, "ray", source, sink, options)


def emit_rates(
    delay_us: int, peer: str, source: Any, sink: Any, options: argparse.Namespace
) -> None:
    """Emits the rate of the link beside that of a peer, which take turns."""
    port, count = runtime.get(sink.port.remote(), timeout=60), options.bare_segments
    rates: dict[str, list[float]] = {"link": [], peer: []}
    for _ in range(options.rounds + 1):
        for way, samples in rates.items():
            calls = [getattr(sink, f"receive_{way}").remote(count)]
            if way != "ray":
                calls.append(getattr(source, f"send_{way}").remote(count, port))
            samples.append(runtime.get(calls, timeout=300)[0])
    ours, peers = (samples[1:] for samples in rates.values())
    emit_pairs(
        "crossing", f"bare/{SEGMENT_BYTES}B/{delay_us}us/{peer}", "MB/s", ours, peers,
        segments=count, ratio_spread=spread_of(ratios_of(ours, peers), 3),
        conditions=options.conditions,
    )  # fmt: skip


def main() -> None:
    options_of = parser(__doc__, rounds=5)
    add = options_of.add_argument
    add("--agents", type=numbers, default=[1, 2, 3], help="hosts that only sample")
    add("--delays-us", type=numbers, default=[100, 1000])
    add("--rollouts-ms", type=fractions, default=[254.0, 25.4])
    add("--factors", type=fractions, default=[1.0, 1.25], help="rollouts over k updates")
    add("--bare-delays-us", type=numbers, default=[0, 100])
    add("--bare-segments", type=int, default=100, help="in each round")
    add("--ray", type=int, default=1, help="0: no row of Ray")
    add("--round-s", type=float, default=2.0, help="sleeps of an agent in a round")
    add("--conditions", default=CONDITIONS, help="kept beside the rows")
    options = options_of.parse_args()
    if why := why_no_network():
        sys.exit(f"{why}. Run it as root, on Linux.")
    runtime.init(PRELOAD)
    try:
        for delay_us in options.bare_delays_us:
            measure_bare(delay_us, options)
        for delay_us in options.delays_us:
            for rollout_ms in options.rollouts_ms:
                for agents in options.agents:
                    measure_training(agents, delay_us, rollout_ms / 1e3, options.factors, options)
    finally:
        runtime.shutdown()


if __name__ == "__main__":
    main()
