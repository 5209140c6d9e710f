#!/usr/bin/env python3
"""Measures multi-channel experience sharing against a single channel (MCC, UCC; Table 8).

Claim: joining what is sent pays, by how much depends on the transport, and the grouping that is
chosen from the measured cost of packets is not slower than any of the fixed ones.

The whole path is timed: agents in processes of their own put segments into a dispatcher, tensor by
tensor and step by step, and a trainer takes batches of one segment from its batcher and copies
every column out. All groupings take turns on links of their own, round after round, in the same
processes; a round is timed from the trainer's first batch to its last one, and the number in each
segment is checked. The copy is the same tensors copied in and out once, in one process: the floor.

Rows, segments a second, ratio = ours over the peer's:
    ring/agents3/mcc/ucc     MCC beside UCC over the shared-memory ring, three agents; also joined/
                             and chosen/; tcp is ZeroMQ with CURVE keys
    ring/agents3/chosen/mcc  the chosen grouping beside MCC; also /joined
    ring/agents3/mcc/copy    beside the floor (below 1: how far from it); also the others

    bench/comm/channels.py --kinds ring,tcp --agents 1,3
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reduction import cores_of
from report import emit_pairs, numbers, parser

from gmi_drl import runtime
from gmi_drl.comm.experience import (
    Channel,
    Grouping,
    LinkCost,
    Migrator,
    Route,
    Schema,
    choose_grouping,
    joined,
    mcc,
    measure_cost,
    ucc,
)
from gmi_drl.comm.transports import create_doorbell, create_link

WIDTHS = {"observation": (60,), "action": (8,), "log_prob": (), "value": (), "reward": (),
          "done": ()}  # Ant of the paper; float32  # fmt: skip
CHANNELS = tuple(Channel(name, width, "float32") for name, width in WIDTHS.items())
Links = dict[str, Any]  # by grouping


def tensors(num_env: int) -> dict[str, Any]:
    import torch

    return {channel.name: torch.randn(num_env, *channel.shape) for channel in CHANNELS}


class Agent:
    """Puts segments into its dispatchers as soon as there is room for them."""

    def __init__(self, links: Links, schemas: dict[str, Schema]) -> None:
        import torch

        from gmi_drl.comm.experience import Compressor, Dispatcher

        torch.set_num_threads(1)
        self.steps = next(iter(schemas.values())).steps
        self.step = tensors(next(iter(schemas.values())).num_env)
        self.dispatchers = {}
        for name, schema in schemas.items():
            sender = links[name].sender(schema.to_bytes(), schema.streams())
            compressor = Compressor(schema, Migrator([Route(sender, 9)]))
            self.dispatchers[name] = Dispatcher(schema, compressor)

    def run(self, name: str, segments: int) -> None:
        dispatcher, step = self.dispatchers[name], self.step
        for number in range(segments):
            step["reward"].fill_(number)
            dispatcher.begin(number)
            for t in range(self.steps):
                dispatcher.put(t, step)
            dispatcher.end()


class Trainer:
    """Takes batches of one segment and copies them out."""

    def __init__(self, links: list[Links], steps: int, num_env: int) -> None:
        import torch

        from gmi_drl.comm.experience import Batcher

        torch.set_num_threads(1)
        self.steps, self.num_env, self.agents = steps, num_env, len(links)
        self.batchers = {
            name: Batcher({i: by_name[name].receiver() for i, by_name in enumerate(links)}, 1, None)
            for name in links[0]
        }
        self.out = {c.name: torch.zeros(steps, num_env, *c.shape) for c in CHANNELS}

    def run(self, name: str, segments: int) -> float:
        """Returns segments a second, over `segments` from each agent."""
        batcher, out = self.batchers[name], self.out
        expected = [0] * self.agents
        begin = 0.0
        for index in range(segments * self.agents):
            batch = batcher.next(0)
            if batch is None:
                raise RuntimeError(f"{name}: the agents have ended")
            for column, target in out.items():
                target.copy_(batch.columns[column])
            agent = batch.segments[0].gmi_id
            ends = (float(out["reward"][0, 0]), float(out["reward"][-1, -1]))
            if ends != (expected[agent], expected[agent]):
                raise RuntimeError(f"{name}: {ends} of agent {agent} instead of {expected[agent]}")
            expected[agent] += 1
            batcher.done(batch)
            if not index:
                begin = time.perf_counter()
        return (segments * self.agents - 1) / (time.perf_counter() - begin)

    def copy(self, segments: int) -> float:
        """Returns segments a second of the floor."""
        import torch

        step, out = tensors(self.num_env), self.out
        rows = {c.name: torch.zeros(self.steps, self.num_env, *c.shape) for c in CHANNELS}
        plan = [[(rows[name][t], tensor) for name, tensor in step.items()]
                for t in range(self.steps)]  # fmt: skip
        begin = time.perf_counter()
        for _ in range(segments):
            for pairs in plan:
                for target, tensor in pairs:
                    target.copy_(tensor)
            for name, target in out.items():
                target.copy_(rows[name])
        return segments / (time.perf_counter() - begin)


class Probe:
    """Measures what packets cost, in a process like the others."""

    def run(self, link: Any) -> LinkCost:
        import torch

        torch.set_num_threads(1)
        return measure_cost(link)


def actor(cls: type, name: str, place: int, places: int, *args: Any) -> Any:
    options = runtime.remote(cls).options(
        name=name, cores=cores_of(min(place, places - 1), places), num_threads=1
    )
    return options.remote(*args)


def measure(kind: Any, agents: int, options: argparse.Namespace) -> None:
    """Measures all rows of one transport and number of agents."""
    steps, num_env = options.steps, options.num_env
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        directory = Path(folder)
        probe = actor(Probe, "probe", 0, 1)
        cost = runtime.get(
            probe.run.remote(create_link("probe", "probe", directory=directory, kind=kind)),
            timeout=60,
        )
        runtime.kill([probe])
        groupings: dict[str, Grouping] = {
            "ucc": ucc(CHANNELS, steps),
            "mcc": mcc(CHANNELS, steps),
            "joined": joined(CHANNELS, steps),
            "chosen": choose_grouping(CHANNELS, steps, num_env, cost),
        }
        schemas = {
            name: Schema(CHANNELS, grouping, steps, num_env) for name, grouping in groupings.items()
        }
        doorbells = {name: create_doorbell() for name in groupings}
        links = [
            {
                name: create_link(
                    f"agent {i}", "trainer", directory=directory, kind=kind, doorbell=doorbell
                )
                for name, doorbell in doorbells.items()
            }
            for i in range(agents)
        ]
        trainer = actor(Trainer, "trainer", 0, 2, links, steps, num_env)
        senders = [actor(Agent, f"agent{i}", 1, 2, ends, schemas) for i, ends in enumerate(links)]
        samples: dict[str, list[float]] = {name: [] for name in (*groupings, "copy")}
        try:
            for _ in range(options.rounds + 1):
                for name in groupings:
                    calls = [sender.run.remote(name, options.segments) for sender in senders]
                    rate = trainer.run.remote(name, options.segments)
                    samples[name].append(runtime.get([rate, *calls], timeout=300)[0])
                copied = trainer.copy.remote(options.segments)
                samples["copy"].append(runtime.get(copied, timeout=60))
        finally:
            runtime.kill([trainer, *senders])
    rates = {name: values[1:] for name, values in samples.items()}
    streams = [f"{'+'.join(s.channels)} x{s.rows}" for s in groupings["chosen"].streams]
    report(f"{kind}/agents{agents}", rates, steps, num_env, streams)


def report(
    where: str, rates: dict[str, list[float]], steps: int, num_env: int, chosen: list[str]
) -> None:
    nbytes = sum(channel.nbytes(steps, num_env) for channel in CHANNELS)
    pairs = [(name, "ucc") for name in ("mcc", "joined", "chosen")]
    pairs += [("chosen", peer) for peer in ("mcc", "joined")]
    pairs += [(name, "copy") for name in ("ucc", "mcc", "joined", "chosen")]
    for name, peer in pairs:
        rate = statistics.median(rates[name])
        emit_pairs(
            "channels", f"{where}/{name}/{peer}", "segments/s", rates[name], rates[peer],
            bytes_per_s=round(rate * nbytes), steps=steps, num_env=num_env,
            **({"streams": chosen} if name == "chosen" else {}),
        )  # fmt: skip


def main() -> None:
    options_of = parser(__doc__, steps=16, num_env=256, rounds=15)
    options_of.add_argument("--kinds", type=lambda text: text.split(","), default=["ring", "tcp"])
    options_of.add_argument("--agents", type=numbers, default=[1, 3])
    options_of.add_argument("--segments", type=int, default=200, help="of each agent in a round")
    options = options_of.parse_args()
    runtime.init(["torch", "gmi_drl.comm.experience.batcher"])
    try:
        for kind in options.kinds:
            for agents in options.agents:
                measure(kind, agents, options)
    finally:
        runtime.shutdown()


if __name__ == "__main__":
    main()
