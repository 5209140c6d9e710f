"""Why a config cannot learn as it says: algorithm and mode, minibatches, links, compression."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gmi_drl.placement.config.algorithms import ALGORITHMS_OF
from gmi_drl.placement.config.config import Config
from gmi_drl.placement.faults import Fault


def learning_faults(config: Config, agents: int, trainers: int) -> list[Fault]:
    """All of them, for a layout with so many GMIs that hold an agent, and a trainer."""
    return [
        *_algorithm(config),
        *_minibatches(config, max(1, agents // trainers) if trainers else 1),
        *_capacity(config, agents, trainers),
        *_compressed(config),
    ]


def _algorithm(config: Config) -> Iterator[Fault]:
    name, fitting = config.algorithm.name, ALGORITHMS_OF.get(config.mode)
    if fitting is not None and name not in fitting:  # serving trains nothing
        home = next(mode for mode, its in ALGORITHMS_OF.items() if name in its)
        yield Fault(
            "algorithm.name", name, f"it trains in mode {home}, and the mode is {config.mode}",
            f"Use {' or '.join(fitting)}, or set mode: {home}.",
        )  # fmt: skip


def _minibatches(config: Config, crew: int) -> Iterator[Fault]:
    """`crew`: the agents of each trainer, where training is synchronous."""
    parts, num_env, horizon = (
        config.algorithm.minibatches, config.env.num_env, config.algorithm.horizon,
    )  # fmt: skip
    if config.mode == "sync":
        rows, what = num_env * horizon * crew, "samples of an update of one GMI"
        factor, its = "horizon", horizon
    elif config.mode == "async":
        # V-trace needs segments whole, so that only environments can be shared out.
        factor, its = "batch_segments", config.experience.batch_segments
        rows, what = num_env * its, "environments in a trainer's batch"
    else:
        return
    agents = f" x {crew} agents" if config.mode == "sync" and crew > 1 else ""
    if rows % parts:
        small = [n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0]
        divisors = [*small, *(rows // n for n in reversed(small))]
        below = max(n for n in divisors if n <= parts)
        above = next((n for n in divisors if n > parts), None)
        near = str(below) if above is None else f"{below} or {above}"
        yield Fault(
            "algorithm.minibatches", parts,
            f"must divide the {rows} {what} (num_env={num_env} x {factor}={its}{agents})",
            f"Use {near}, or change num_env or {factor}.",
        )  # fmt: skip


def _capacity(config: Config, agents: int, trainers: int) -> Iterator[Fault]:
    """The links into a trainer must hold what it trains on, and what is not given back yet.

    And one segment more each, which a killed agent may leave there in part.
    """
    if config.mode != "async":
        return
    batch, capacity = config.experience.batch_segments, config.experience.capacity
    wanted = batch * (2 if trainers > 1 else 1)
    room = (capacity - 1) * agents
    if agents > 0 and room < wanted:
        kept = ", and hold each until the next has begun" if trainers > 1 else ""
        yield Fault(
            "experience.capacity", capacity,
            f"trainers take batches of {batch} segments{kept}, and the links of {agents} agents "
            f"hold {room}, beside one more each that is being sent",
            f"Use {-(-wanted // agents) + 1} or more, or lower batch_segments.",
        )  # fmt: skip


def _compressed(config: Config) -> Iterator[Fault]:
    """Of a segment's channels only observations can be bytes."""
    if others := [name for name in config.experience.lz4 if name != "observation"]:
        yield Fault(
            "experience.lz4", others, "only the channel observation is compressed, if it is uint8",
            "Use [observation], or leave it out.",
        )  # fmt: skip
