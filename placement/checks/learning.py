"""Lists why a config cannot learn: its mode, the rules of its algorithm, links, compression."""

from __future__ import annotations

from collections.abc import Iterator

from gmi_drl.placement.config.algorithms import mode_faults
from gmi_drl.placement.config.config import Config
from gmi_drl.placement.faults import Fault


def learning_faults(config: Config, agents: int, trainers: int) -> list[Fault]:
    """Returns all of them, with this many GMIs that hold an agent, and a trainer."""
    wrong_mode = list(mode_faults(config.algorithm, config.mode))
    learns = config.mode != "serving" and not wrong_mode
    return [
        *wrong_mode,
        *(config.algorithm.faults(config, agents, trainers) if learns else ()),
        *_capacity(config, agents, trainers),
        *_compressed(config),
    ]


def _capacity(config: Config, agents: int, trainers: int) -> Iterator[Fault]:
    """Yields a fault unless the links into a trainer hold what it trains on and what it keeps.

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
    """Yields a fault for channels that are no bytes: only observations can be."""
    if others := [name for name in config.experience.lz4 if name != "observation"]:
        yield Fault(
            "experience.lz4", others, "only the channel observation is compressed, if it is uint8",
            "Use [observation], or leave it out.",
        )  # fmt: skip
