#!/usr/bin/env python3
"""Measures the replay in one process on one core: beside peers' replays, and stacks of frames.

    prioritized/<rows>   microseconds to draw a prioritised minibatch of 256 and to learn its new
                         priorities, out of 2^16 and of 2^20 transitions
    prioritized/<rows>/torchrl
                         the same beside TorchRL's, in the same rounds
    uniform/<rows>       to draw a uniform one
    insert               microseconds to put 64 steps of 16 environments in, priorities included
    memory               bytes of a transition, of the prioritised ones
    stacks/memory        bytes of a transition of stacks of four images of 84 x 84, prioritised,
                         against a replay that keeps stacks whole
    stacks/draw          to draw a uniform minibatch of 32 of those out of 2^14, against the same
    lz4/pong, minatar    how many times smaller LZ4 makes the frames of random play, each by
                         itself, and microseconds to unpack those of a minibatch of 32

The first five are beside peers' replays, with the same transitions: those of HalfCheetah, 17
numbers observed, actions of 6. What is drawn is of the type that networks take, float32, on all
sides. Ours counts what a training step does: the draws of a torch generator, next observations made
from the step that follows, and a check of the priorities that are learned. cpprb's are its numpy
arrays as they come, TorchRL's its TensorDictPrioritizedReplayBuffer over a LazyTensorStorage.
Stable-Baselines3 and sb3-contrib have no prioritised replay (2.9.2).

    python bench/replay.py [--rounds 15] [--rows prioritized insert]

Needs cpprb (gmi-drl[bench]); without TorchRL, or where its extension is of another torch than the
one that is installed, its rows are left out, and the bench says so. Rows lz4 need
gmi-drl[atari,minatar] and lz4. Run it on a machine that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
import torch
from report import emit, emit_pairs, parser, say

from gmi_drl.roles.envs import Stacking, make_env
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay import (
    Limiter,
    PrioritizedSampler,
    ReplayBuffer,
    Sampler,
    Storage,
    UniformSampler,
)

ROWS: Final = ("prioritized", "uniform", "insert", "memory", "stacks", "lz4")
OBSERVED, ACTION, ENVS, STEPS, SIZE = 17, 6, 16, 64, 256
IMAGE, FRAMES, IMAGE_SIZE = 84 * 84, 4, 32
COLUMNS: Final = ("raw_observation", "action", "reward", "discount", "next_observation")
CPU: Final = torch.device("cpu")
ALPHA, BETA = 0.6, 0.4


def steps(seed: int = 0) -> Batch:
    """Returns steps of environments whose episodes have a thousand steps."""
    generator = torch.Generator().manual_seed(seed)
    observations = torch.randn(STEPS + 1, ENVS, OBSERVED, generator=generator)
    observations[-1] = observations[0]  # the same steps can be put in again and again
    done = torch.rand(STEPS, ENVS, generator=generator) < 0.001
    return Batch(
        {
            "raw_observation": observations[:-1], "next_observation": observations[1:],
            "action": torch.rand(STEPS, ENVS, ACTION, generator=generator),
            "reward": torch.rand(STEPS, ENVS, generator=generator),
            "done": done.float(), "terminated": done,
        }
    )  # fmt: skip


class Ours:
    """Our replay with a job's settings, filled with `batch` again and again."""

    def __init__(
        self, rows: int, prioritized: bool, batch: Batch, size: int = SIZE,
        stacking: Stacking | None = None,
    ) -> None:  # fmt: skip
        self.batch = batch
        # The ring has room for one step more than it keeps.
        self.storage = Storage(self.batch, COLUMNS, rows, CPU, stacking=stacking)
        self.sampler: Sampler = UniformSampler(self.storage.places, CPU)
        if prioritized:
            self.sampler = PrioritizedSampler(self.storage.places, CPU, alpha=ALPHA, beta=BETA)
        generator = torch.Generator().manual_seed(0)
        self.replay = ReplayBuffer(self.storage, self.sampler, Limiter(0, 1.0), size, generator)
        for _ in range(-(-rows // batch["reward"].numel())):
            self.replay.put(self.batch)
        self.priorities = torch.rand(SIZE)

    def draw(self) -> None:
        """Draws a minibatch."""
        self.replay.next()

    def draw_and_learn(self) -> None:
        """Draws a minibatch and updates its priorities."""
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
    """cpprb's buffer, with the same transitions."""

    def __init__(self, rows: int, prioritized: bool) -> None:
        import cpprb

        fields = {
            "obs": {"shape": OBSERVED}, "act": {"shape": ACTION}, "rew": {},
            "next_obs": {"shape": OBSERVED}, "done": {},
        }  # fmt: skip
        options = {"alpha": ALPHA} if prioritized else {}
        kind: Any = cpprb.PrioritizedReplayBuffer if prioritized else cpprb.ReplayBuffer
        self._buffer = kind(rows, fields, **options)
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
        """Draws a minibatch."""
        self._buffer.sample(SIZE)

    def draw_and_learn(self) -> None:
        """Draws a minibatch and updates its priorities."""
        minibatch = self._buffer.sample(SIZE, BETA)
        self._buffer.update_priorities(minibatch["indexes"], self._priorities)

    def insert(self) -> None:
        """Steps are put in."""
        self._buffer.add(**self._steps)

    @property
    def nbytes(self) -> float:
        """Bytes of a transition; its trees are not counted."""
        transitions = self._buffer.get_all_transitions()
        return float(sum(column.itemsize * column[0].size for column in transitions.values()))


class TorchRL:
    """TorchRL's prioritised buffer, with the same transitions; ImportError if it is missing."""

    def __init__(self, rows: int) -> None:
        import torchrl._torchrl  # noqa: F401 - its trees: a compiled extension
        from tensordict import TensorDict
        from torchrl import torchrl_logger
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        torchrl_logger.setLevel("WARNING")  # it logs to standard output
        self._buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, eps=1e-6, storage=LazyTensorStorage(rows), batch_size=SIZE
        )
        names = ("raw_observation", "action", "reward", "next_observation", "done")
        batch = steps()
        columns = {name: batch[name].flatten(0, 1) for name in names}
        transitions = TensorDict(columns, batch_size=[STEPS * ENVS])
        for _ in range(-(-rows // (STEPS * ENVS))):
            self._buffer.extend(transitions)
        self._priorities = torch.rand(SIZE)

    def draw_and_learn(self) -> None:
        """Draws a minibatch and updates its priorities."""
        minibatch = self._buffer.sample()
        self._buffer.update_priority(minibatch["index"], self._priorities)


def stacks(steps: int = 16, num_env: int = 8) -> Batch:
    """Returns steps of environments that show stacks of images, and whose episodes do not end."""
    generator = torch.Generator().manual_seed(0)
    shape = (steps + FRAMES, num_env, IMAGE)
    images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    images[steps:] = images[:FRAMES]  # the same steps can be put in again and again
    # [T + 1, N, image, frames], the newest last
    shown = torch.stack([images[age : age + steps + 1] for age in range(FRAMES)], -1).flatten(2)
    ones = torch.ones(steps, num_env)
    return Batch(
        {
            "raw_observation": shown[:-1], "next_observation": shown[1:], "action": ones[..., None],
            "reward": ones, "done": 0 * ones, "terminated": ones < 0,
        }
    )  # fmt: skip


def stack_rows(rounds: int) -> None:
    """Measures the memory and the time of a replay that keeps each frame once."""
    by_frame, by_stack = (
        Ours(1 << 14, False, stacks(), IMAGE_SIZE, stacking)
        for stacking in (Stacking(FRAMES, 1), None)
    )
    compare("stacks/draw", by_frame.draw, {"whole stacks": by_stack.draw}, rounds, times=50)
    del by_frame
    ours = Ours(1 << 17, False, stacks(), IMAGE_SIZE, Stacking(FRAMES, 1)).nbytes
    peer = by_stack.nbytes
    emit(
        "replay", "stacks/memory", value=round(ours, 1), unit="bytes/transition",
        peer=round(peer, 1), ratio=peer / ours, peer_name="whole stacks",
    )  # fmt: skip


def lz4_rows() -> None:
    """Measures LZ4 on frames, each of which would be unpacked when it is drawn."""
    import lz4.block as lz4

    pong = {
        "wrappers": ["gymnasium.wrappers:AtariPreprocessing"], "options": {"frameskip": 1},
    }  # fmt: skip
    games: list[tuple[str, str, dict[str, Any], int, int]] = [
        ("pong", "ALE/Pong-v5", pong, 6, IMAGE_SIZE * (FRAMES + 1)),
        ("minatar", "MinAtar/Breakout-v1", {}, 3, IMAGE_SIZE * 2),
    ]
    for name, env_id, env_options, actions, batch_size in games:
        env = make_env(env_id, 4, seed=1, **env_options)
        generator, frames = torch.Generator().manual_seed(0), [env.reset().clone()]
        for _ in range(500):
            action = torch.randint(actions, (4,), generator=generator)
            frames.append(env.step(action).observation.clone())
        env.close()
        raw = [frame.numpy().tobytes() for frame in torch.stack(frames).flatten(0, 1)]
        packed = [lz4.compress(frame, store_size=False) for frame in raw]
        size, minibatch = len(raw[0]), packed[:: len(packed) // batch_size][:batch_size]

        def unpack(minibatch: list[bytes] = minibatch, size: int = size) -> None:
            for frame in minibatch:
                lz4.decompress(frame, uncompressed_size=size)

        factor = sum(map(len, raw)) / sum(map(len, packed))
        emit(
            "replay", f"lz4/{name}", value=round(factor, 1), unit="times smaller", peer=1,
            ratio=factor, frame_bytes=size,
            unpack_us=round(microseconds(unpack, 200), 1), frames_of_a_minibatch=batch_size,
        )  # fmt: skip


def microseconds(work: Callable[[], None], times: int) -> float:
    """Returns the mean microseconds of a call."""
    begun_ns = perf_counter_ns()
    for _ in range(times):
        work()
    return (perf_counter_ns() - begun_ns) / 1e3 / times


def compare(
    name: str,
    ours: Callable[[], None],
    peers: Mapping[str, Callable[[], None]],
    rounds: int,
    *,
    times: int = 200,
) -> None:
    """Measures all sides in turn, without the first round, and emits a row for each peer.

    The row of the first peer is called `name`, the others end with `/peer`.
    """
    samples_us: list[list[float]] = [[] for _ in range(1 + len(peers))]
    for number in range(rounds + 1):
        for work, durations_us in zip((ours, *peers.values()), samples_us, strict=True):
            duration_us = microseconds(work, times)
            durations_us += [duration_us] if number else []
    for number, (peer, peer_samples_us) in enumerate(zip(peers, samples_us[1:], strict=True)):
        row = f"{name}/{peer.split()[0]}" if number else name
        emit_pairs(
            "replay", row, "us", samples_us[0], peer_samples_us, smaller_is_better=True, digits=2,
            peer_name=peer,
        )  # fmt: skip


def prioritized_peers(rows: int) -> dict[str, Callable[[], None]]:
    """Returns the functions that draw and learn in each installed peer, by name."""
    peers = {"cpprb": Cpprb(rows, True).draw_and_learn}
    try:
        peers[f"torchrl {version('torchrl')}"] = TorchRL(rows).draw_and_learn
    except ImportError as error:  # PackageNotFoundError is one
        say(
            f"no rows beside TorchRL: {error!s:.150}. Install gmi-drl[bench], with a torch that "
            "torchrl's extension was built for."
        )
    return peers


def main() -> None:
    options_of = parser(__doc__, rounds=15)
    options_of.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    options = options_of.parse_args()
    torch.set_num_threads(1)
    for power in (16, 20):
        if "prioritized" in options.rows:
            ours, peers = Ours(1 << power, True, steps()), prioritized_peers(1 << power)
            compare(f"prioritized/2^{power}", ours.draw_and_learn, peers, options.rounds)
        if "uniform" in options.rows:
            ours, peer = Ours(1 << power, False, steps()), Cpprb(1 << power, False)
            compare(f"uniform/2^{power}", ours.draw, {"cpprb": peer.draw}, options.rounds)
    if {"insert", "memory"} & set(options.rows):
        ours, peer = Ours(1 << 20, True, steps()), Cpprb(1 << 20, True)
        if "insert" in options.rows:
            compare("insert", ours.insert, {"cpprb": peer.insert}, options.rounds)
        if "memory" in options.rows:
            emit(
                "replay", "memory", value=round(ours.nbytes, 1), unit="bytes/transition",
                peer=peer.nbytes, ratio=peer.nbytes / ours.nbytes, peer_name="cpprb",
            )  # fmt: skip
    if "stacks" in options.rows:
        stack_rows(options.rounds)
    if "lz4" in options.rows:
        lz4_rows()


if __name__ == "__main__":
    main()
