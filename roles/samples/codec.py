"""Turns batches into the bytes of packets, and back; says which columns travel.

Observations travel raw, as the batch keeps them: as bytes where the environment has bytes, and
stacks of frames as frames. What a receiver can compute does not travel: T N (D + A + P + 4) + N
numbers for PPO (GMI-DRL's table 4 counts m (S + A + W); values, log-probabilities and distribution
parameters come on top).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from gmi_drl.comm.experience import Channel
from gmi_drl.comm.shm.pinned import is_pinned
from gmi_drl.roles.envs.protocol import Stacking
from gmi_drl.roles.policies.normalize import RunningNormalizer, normalized
from gmi_drl.roles.policies.policy import Policy

from .batch import Batch, Sequences
from .frames import Frames

_TYPES: Final = {n: getattr(torch, n) for n in ("float64", "float32", "uint8", "bool")}

# Channels of segments that agents send all the time (see gmi_drl.comm.experience): the last
# observation, the policy's first state, and statistics in float64: the episodes that ended, the
# sums of their returns and lengths, and the seconds of simulating, inferring and sending the
# segment before.
END_FIELD: Final = "last_observation"
STATE_FIELD: Final = "first_state"  # where the policy remembers
FRAMES_FIELD: Final = "older_frames"  # where observations are stacks that are kept as frames
PRIORITY_FIELD: Final = "priority"  # of each step, where a replay draws by them: [T, N]
STATS_FIELD: Final = "stats"
SEGMENT_STATS: Final = (
    "episodes", "return_sum", "length_sum", "simulate_s", "infer_s", "send_s",
    "process",  # of the agent, as GmiContext counts them
)  # fmt: skip


class BatchCodec:
    """Packs a batch of `num_env` environments into one packet, with `stats` numbers, and back.

    Both ends make it from a batch of their own, which may have another number of environments;
    `schema` is the same if their codecs fit.
    """

    def __init__(self, batch: Batch, num_env: int, sent: Sequence[str], stats: int) -> None:
        # The widest numbers come first, so that all are aligned.
        self._fields: dict[str, tuple[str, tuple[int, ...]]] = {"stats": ("float64", (stats,))}
        self._columns = list(sent)
        for name, (tensor, dim) in self._tensors(batch).items():
            shape = (*tensor.shape[:dim], num_env, *tensor.shape[dim + 1 :])
            self._fields[name] = (dtype_name(tensor), shape)
        order = sorted(self._fields, key=lambda name: -_TYPES[self._fields[name][0]].itemsize)
        self._fields = {name: self._fields[name] for name in order}
        self._places: dict[str, slice] = {}
        end = 0
        for name, (dtype, dims) in self._fields.items():
            begin, end = end, end + math.prod(dims) * _TYPES[dtype].itemsize
            self._places[name] = slice(begin, end)
        self.nbytes = end
        self.num_env = num_env
        self.schema = json.dumps(self._fields).encode()

    def pack(self, memory: Tensor, batch: Batch, stats: Sequence[float]) -> None:
        """Copy a batch into the first `nbytes` of `memory`, uint8 on any device.

        Copies into pinned memory may not have ended when it returns: see Sender.pin.
        """
        parts, pinned = self._parts(memory), is_pinned(memory)
        parts["stats"].copy_(torch.tensor(stats, dtype=torch.float64))
        for name, (tensor, _) in self._tensors(batch).items():
            parts[name].copy_(tensor, non_blocking=pinned)

    def unpack(self, memory: Tensor, batch: Batch, first: int) -> list[float]:
        """Copies what `pack` wrote into the environments from `first` on, and returns its stats.

        Copies from pinned memory may not have ended when it returns: see Receiver.pin.
        """
        parts, pinned = self._parts(memory), is_pinned(memory)
        for name, (tensor, dim) in self._tensors(batch).items():
            part = tensor.narrow(dim, first, self.num_env)
            part.copy_(parts[name], non_blocking=pinned)
        stats: list[float] = parts["stats"].tolist()
        return stats

    def _tensors(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """Returns what travels of a batch, and along which dimension of that environments lie."""
        tensors = {name: (batch[name], 1) for name in self._columns}
        tensors |= {f"last {name}": (last, 0) for name, last in batch.bootstrap.items()}
        if batch.sequences is not None:
            tensors["first state"] = (batch.sequences.state, 0)
        if batch.frames is not None:
            tensors["older frames"] = (batch.frames.older, 1)
        return tensors

    def _parts(self, memory: Tensor) -> dict[str, Tensor]:
        return {
            name: memory[self._places[name]].view(_TYPES[dtype]).view(shape)
            for name, (dtype, shape) in self._fields.items()
        }


def sent_columns(policy: Policy, recorded: Sequence[str]) -> list[str]:
    """Returns the columns of a batch that travel, where the receiver completes it."""
    return ["action", *policy.columns, "reward", "done", "raw_observation", *recorded]


def segment_columns(
    batch: Batch, fields: Sequence[str], priorities: Tensor | None
) -> dict[str, Tensor]:
    """Returns what agents that send all the time tell of each step, [T, N, ...], by channel."""
    columns = {"observation": batch["raw_observation"], **{name: batch[name] for name in fields}}
    return columns if priorities is None else {**columns, PRIORITY_FIELD: priorities}


def segment_channels(
    batch: Batch, columns: Mapping[str, Tensor], observation: Tensor
) -> tuple[Channel, ...]:
    """Returns the channels of a segment: its `columns`, and what there is once in it.

    `observation` [N, D] is like the last one, raw.
    """
    channels = [
        *(Channel(name, tuple(c.shape[2:]), dtype_name(c)) for name, c in columns.items()),
        Channel(END_FIELD, tuple(observation.shape), dtype_name(observation), True),
        Channel(STATS_FIELD, (len(SEGMENT_STATS),), "float64", True),
    ]
    if batch.sequences is not None:
        channels.append(Channel(STATE_FIELD, tuple(batch.sequences.state.shape), "float32", True))
    if (frames := older_frames(batch)) is not None:
        channels.append(Channel(FRAMES_FIELD, tuple(frames.shape), "uint8", True))
    return tuple(channels)


def older_frames(batch: Batch) -> Tensor | None:
    """Returns the frames [k - 1, N, F] before a segment, where its observations are stacks."""
    frames = batch.frames
    return None if frames is None or not len(frames.older) else frames.older


def received(
    columns: Mapping[str, Tensor],
    per_segment: Mapping[str, Tensor],
    fields: Sequence[str],
    stacking: Stacking | None = None,
) -> Batch:
    """Returns the batch of segments that arrived; views, but for frames of stacks.

    It has `fields` and `observation` of every step [T, B, ...], the last observations [segments, N,
    D] and, where the policy remembers, the states before the first step [segments, N, S], in the
    order in which segments lie along B. With `stacking` observations are frames: see Observed.
    """
    raw = columns["observation"]
    batch = {"raw_observation": raw, **{name: columns[name] for name in fields}}
    frames: Frames | None = None
    if stacking is not None:
        done, kept = columns.get("done", raw.new_zeros(raw.shape[:2])), raw
        if FRAMES_FIELD in per_segment:  # [segments, k - 1, N, F]
            older = per_segment[FRAMES_FIELD].transpose(0, 1).flatten(1, 2)
            kept = torch.cat([older, raw])
        frames = Frames(kept, done, stacking)
    sequences: Sequences | None = None
    if STATE_FIELD in per_segment:
        sequences = Sequences(per_segment[STATE_FIELD].flatten(0, 1), columns["done"])
    last = {"observation": per_segment[END_FIELD].flatten(0, 1)}
    return Batch(batch, last, sequences=sequences, frames=frames)


def complete(batch: Batch, policy: Policy, normalizer: RunningNormalizer | None) -> None:
    """Fills what did not travel, by the `policy` and `normalizer` that the batch was made with."""
    for name, constant in policy.row_constants.items():
        batch.row_constants[name].copy_(constant)
    if batch.frames is None:
        normalized(normalizer, batch["raw_observation"], batch["observation"])


def dtype_name(tensor: Tensor) -> str:
    """Returns the name of a tensor's type, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")
