#!/usr/bin/env python3
"""Measures the replay beside cpprb's, in one process on one core, with the same transitions.

    prioritized/<rows>   microseconds to draw a prioritised minibatch of 256 and to learn its new
                         priorities, out of 2^16 and of 2^20 transitions
    uniform/<rows>       to draw a uniform one
    insert               microseconds to put 64 steps of 16 environments in, priorities included
    memory               bytes of a transition, of the prioritised ones

The transitions are those of HalfCheetah: 17 numbers observed, actions of 6. What is drawn is of the
type that networks take, float32, on both sides. Ours counts what a training step does: the draws
of a torch generator, next observations made from the step that follows, and a check of the
priorities that are learned. cpprb's are its numpy arrays as they come.

    python bench/replay.py [--rounds 15] [--rows prioritized insert]

Needs cpprb (gmi-drl[bench]). Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
import torch
from report import emit, emit_pairs

from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay import (
    Limiter,
    PrioritizedSampler,
    Replay,
    Sampler,
    Storage,
    UniformSampler,
)

ROWS: Final = ("prioritized", "uniform", "insert", "memory")
OBSERVED, ACTION, ENVS, STEPS, SIZE = 17, 6, 16, 64, 256
COLUMNS: Final = ("raw_observation", "action", "reward", "discount", "next_observation")
CPU: Final = torch.device("cpu")
ALPHA, BETA = 0.6, 0.4


def steps(seed: int = 0) -> Batch:
    """Steps of environments whose episodes have a thousand steps."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.randn(STEPS + 1, ENVS, OBSERVED, generator=generator)
    seen[-1] = seen[0]  # the same steps can be put in again and again
    done = torch.rand(STEPS, ENVS, generator=generator) < 0.001
    return Batch(
        {
            "raw_observation": seen[:-1], "next_observation": seen[1:],
            "action": torch.rand(STEPS, ENVS, ACTION, generator=generator),
            "reward": torch.rand(STEPS, ENVS, generator=generator),
            "done": done.float(), "terminated": done,
        }
    )  # fmt: skip


class Ours:
    """The replay of a job, full."""

    def __init__(self, rows: int, prioritized: bool) -> None:
        self.batch = steps()
        # The ring has a step more than it keeps.
        self.storage = Storage(self.batch, COLUMNS, rows, CPU)
        self.sampler: Sampler = UniformSampler(self.storage.places, CPU)
        if prioritized:
            self.sampler = PrioritizedSampler(self.storage.places, CPU, alpha=ALPHA, beta=BETA)
        generator = torch.Generator().manual_seed(0)
        self.replay = Replay(self.storage, self.sampler, Limiter(0, 1.0), SIZE, generator)
        for _ in range(-(-rows // (STEPS * ENVS))):
            self.replay.put(self.batch)
        self.priorities = torch.rand(SIZE)

    def draw(self) -> None:
        """A minibatch is drawn."""
        self.replay.next()

    def draw_and_learn(self) -> None:
        """A minibatch is drawn, and its priorities are learned."""
        _, keys = self.replay.next()
        self.replay.feedback(keys, self.priorities)

    def insert(self) -> None:
        """Steps are put in."""
        self.replay.put(self.batch)

    @property
    def nbytes(self) -> float:
        """Bytes of a transition, with its priority."""
        return self.storage.nbytes / self.storage.places + 8 * 66 / 64


class Cpprb:
    """cpprb's buffer of the same transitions."""

    def __init__(self, rows: int, prioritized: bool) -> None:
        import cpprb

        fields = {
            "obs": {"shape": OBSERVED}, "act": {"shape": ACTION}, "rew": {},
            "next_obs": {"shape": OBSERVED}, "done": {},
        }  # fmt: skip
        its = {"alpha": ALPHA} if prioritized else {}
        kind: Any = cpprb.PrioritizedReplayBuffer if prioritized else cpprb.ReplayBuffer
        self._buffer = kind(rows, fields, **its)
        batch = steps()
        flat = {name: column.flatten(0, 1).numpy() for name, column in batch.columns.items()}
        self._steps = {
            "obs": flat["raw_observation"], "act": flat["action"], "rew": flat["reward"],
            "next_obs": flat["next_observation"], "done": flat["done"],
        }  # fmt: skip
        for _ in range(-(-rows // (STEPS * ENVS))):
            self.insert()
        self._priorities = np.random.default_rng(0).random(SIZE).astype(np.float32)

    def draw(self) -> None:
        """A minibatch is drawn."""
        self._buffer.sample(SIZE)

    def draw_and_learn(self) -> None:
        """A minibatch is drawn, and its priorities are learned."""
        drawn = self._buffer.sample(SIZE, BETA)
        self._buffer.update_priorities(drawn["indexes"], self._priorities)

    def insert(self) -> None:
        """Steps are put in."""
        self._buffer.add(**self._steps)

    @property
    def nbytes(self) -> float:
        """Bytes of a transition; its trees are not counted."""
        kept = self._buffer.get_all_transitions()
        return float(sum(its.itemsize * its[0].size for its in kept.values()))


def microseconds(work: Callable[[], None], times: int) -> float:
    """Returns what one call takes, the mean of some."""
    begun_ns = perf_counter_ns()
    for _ in range(times):
        work()
    return (perf_counter_ns() - begun_ns) / 1e3 / times


def compare(name: str, ours: Callable[[], None], peer: Callable[[], None], rounds: int) -> None:
    """Measures both in turn, the first round not counted, and emits a row."""
    found: tuple[list[float], list[float]] = [], []
    for number in range(rounds + 1):
        for work, kept in zip((ours, peer), found, strict=True):
            took = microseconds(work, 200)
            kept += [took] if number else []
    emit_pairs("replay", name, "us", *found, smaller_is_better=True, peer_name="cpprb", digits=2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for power in (16, 20):
        if "prioritized" in options.rows:
            ours, peer = Ours(1 << power, True), Cpprb(1 << power, True)
            name = f"prioritized/2^{power}"
            compare(name, ours.draw_and_learn, peer.draw_and_learn, options.rounds)
        if "uniform" in options.rows:
            ours, peer = Ours(1 << power, False), Cpprb(1 << power, False)
            compare(f"uniform/2^{power}", ours.draw, peer.draw, options.rounds)
    if {"insert", "memory"} & set(options.rows):
        ours, peer = Ours(1 << 20, True), Cpprb(1 << 20, True)
        if "insert" in options.rows:
            compare("insert", ours.insert, peer.insert, options.rounds)
        if "memory" in options.rows:
            emit(
                "replay", "memory", value=round(ours.nbytes, 1), unit="bytes/transition",
                peer=peer.nbytes, ratio=peer.nbytes / ours.nbytes, repeats=1, spread=None,
                peer_name="cpprb",
            )  # fmt: skip


if __name__ == "__main__":
    main()
