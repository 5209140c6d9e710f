"""Segments: T steps of B environments, as agents send them and trainers learn from them.

D = observation width, A = action columns. A segment is raw: observations are not normalised, as
the trainer's statistics are newer than the agent's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gmi_drl.roles.policies.normalize import RunningNormalizer

from .collector import Collector

STEP_FIELDS = ("observation", "action", "log_prob", "reward", "done")
END_FIELD = "last_observation"


@dataclass(frozen=True)
class Segments:
    """Experience of one or several segments, side by side along B. Views: nothing is copied."""

    observation: Tensor  # [T, B, D] raw
    action: Tensor  # [T, B, A] as sampled, before the environment clamps it
    log_prob: Tensor  # [T, B] under the behaviour policy
    reward: Tensor  # [T, B] scaled; at a time limit with gamma * V(final observation) inside
    done: Tensor  # [T, B] 1 where the episode ended with that step, else 0
    last_observation: Tensor  # [B, D] raw, after step T - 1 (of the next episode, if done)

    @classmethod
    def of(cls, collector: Collector) -> Segments:
        """What `collector` has just collected: views of its buffers, until it collects again."""
        rollout = collector.rollout
        return cls(
            rollout.raw_observation,
            rollout["action"],
            rollout["log_prob"],
            rollout.reward,
            rollout.done,
            collector.observation,
        )

    @classmethod
    def of_columns(
        cls, columns: Mapping[str, Tensor], per_segment: Mapping[str, Tensor]
    ) -> Segments:
        """From what arrives at a trainer: the fields of every step [T, B, ...] by their names, and
        the last observations [segments, N, D], in the order in which segments lie along B."""
        last = per_segment[END_FIELD].flatten(0, 1)
        return cls(**{name: columns[name] for name in STEP_FIELDS}, last_observation=last)

    @property
    def steps(self) -> int:
        return self.reward.shape[0]

    @property
    def width(self) -> int:
        """B, the environments side by side."""
        return self.reward.shape[1]

    def prepare(self, normalizer: RunningNormalizer | None) -> Batch:
        """What a loss takes: normalised observations, copied; the rest are views."""
        steps, width, size = self.observation.shape
        observations = self.observation.new_empty(steps + 1, width, size)
        for raw, out in (
            (self.observation, observations[:-1]),
            (self.last_observation, observations[-1]),
        ):
            if normalizer is None:
                out.copy_(raw)
            else:
                normalizer.normalize(raw, out=out)
        return Batch(observations, self.action, self.log_prob, self.reward, self.done)


@dataclass(frozen=True)
class Batch:
    """Segments made ready for a loss."""

    observations: Tensor  # [T + 1, B, D] normalised, the last ones in row T
    action: Tensor  # [T, B, A]
    log_prob: Tensor  # [T, B] under the behaviour policy
    reward: Tensor  # [T, B]
    done: Tensor  # [T, B] 1 where the episode ended with that step, else 0

    def pick(self, environments: Tensor) -> Batch:
        """The part of some environments (indices [b]): whole segments, copied."""
        parts = (self.observations, self.action, self.log_prob, self.reward, self.done)
        return Batch(*(torch.index_select(part, 1, environments) for part in parts))
