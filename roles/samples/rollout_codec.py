"""What an agent hands to its trainer after each horizon of synchronous training (TDG_EX).

T = horizon, N = num_env of the agent, D = observation width, A = action columns, P = distribution
parameters. One packet holds all of a rollout that the trainer does not make itself: T N (D + A + P
+ 4) + N numbers (GMI-DRL's table 4 counts m (S + A + W); values, log-probabilities and parameters
come on top, so that nothing is inferred twice). Observations travel raw, and as bytes where the
environment has bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from gmi_drl.comm.shm.pinned import is_pinned
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.policy import ActorCritic
from gmi_drl.roles.telemetry.progress import AGENTS

from .rollout import Rollout

_STATS: Final = 3 + len(AGENTS)  # of Seen, then the seconds of an agent's phases
_COLUMNS: Final = ("action", "parameters", "value", "log_prob")  # of a rollout's rows
_STEPS: Final = ("reward", "done", "raw_observation")
_TYPES: Final = {"float64": torch.float64, "float32": torch.float32, "uint8": torch.uint8}


class Handover:
    """A rollout of `num_env` environments as the bytes of one packet, both ways.

    Both ends make it from the config; `schema` tells whether they made the same.
    """

    def __init__(
        self, horizon: int, num_env: int, obs_dim: int, policy: ActorCritic, of_bytes: bool
    ) -> None:
        dist, steps = policy.distribution, (horizon, num_env)
        # The widest numbers come first, so that all of them lie where they may.
        self._fields: dict[str, tuple[str, tuple[int, ...]]] = {
            "stats": ("float64", (_STATS,)),
            "action": ("float32", (*steps, dist.action_columns)),
            "parameters": ("float32", (*steps, dist.parameters)),
            "value": ("float32", steps),
            "log_prob": ("float32", steps),
            "reward": ("float32", steps),
            "done": ("float32", steps),
            "last_value": ("float32", (num_env,)),
            "raw_observation": ("uint8" if of_bytes else "float32", (*steps, obs_dim)),
        }
        self._places: dict[str, slice] = {}
        end = 0
        for name, (dtype, shape) in self._fields.items():
            begin, end = end, end + math.prod(shape) * _TYPES[dtype].itemsize
            self._places[name] = slice(begin, end)
        self.nbytes = end
        self.schema = json.dumps(self._fields).encode()

    def pack(self, memory: Tensor, rollout: Rollout, stats: Sequence[float]) -> None:
        """Copy a rollout into the first `nbytes` of `memory`, uint8 on any device.

        Into memory that is pinned the copies are under way when it returns: see Sender.pin.
        """
        parts, pinned = self._parts(memory), is_pinned(memory)
        parts["stats"].copy_(torch.tensor(stats, dtype=torch.float64))
        for name in _COLUMNS:
            parts[name].copy_(rollout[name], non_blocking=pinned)
        for name in _STEPS:
            parts[name].copy_(getattr(rollout, name), non_blocking=pinned)
        parts["last_value"].copy_(rollout.last_value, non_blocking=pinned)

    def unpack(self, memory: Tensor, rollout: Rollout, first: int) -> list[float]:
        """Copy what `pack` wrote into the environments from `first` on; returns its stats.

        From memory that is pinned the copies are under way when it returns: see Receiver.pin.
        """
        parts, pinned = self._parts(memory), is_pinned(memory)
        (num_env,) = parts["last_value"].shape
        mine = slice(first, first + num_env)
        for name in _COLUMNS:
            rollout[name][:, mine].copy_(parts[name], non_blocking=pinned)
        for name in _STEPS:
            getattr(rollout, name)[:, mine].copy_(parts[name], non_blocking=pinned)
        rollout.last_value[mine].copy_(parts["last_value"], non_blocking=pinned)
        stats: list[float] = parts["stats"].tolist()
        return stats

    def _parts(self, memory: Tensor) -> dict[str, Tensor]:
        return {
            name: memory[self._places[name]].view(_TYPES[dtype]).view(shape)
            for name, (dtype, shape) in self._fields.items()
        }


def complete(rollout: Rollout, policy: ActorCritic, normalizer: RunningNormalizer | None) -> None:
    """Fill in what did not travel: `policy` and `normalizer` are those that it was made with."""
    rollout.log_std.copy_(policy.log_std)
    seen = rollout["observation"]
    if normalizer is None:
        seen.copy_(rollout.raw_observation)
    else:
        normalizer.normalize(rollout.raw_observation, out=seen)
