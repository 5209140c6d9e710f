"""Keeps steps and draws minibatches of them: storage, sampler and limiter (docs/replay.md)."""

from .limiter import Limiter
from .samplers import PrioritizedSampler, Sampler, UniformSampler, checked_priorities
from .sequences import SequenceStorage
from .source import ReplayBuffer, Source
from .storage import MADE, MADE_OF, Storage

__all__ = [
    "MADE", "MADE_OF", "Limiter", "PrioritizedSampler", "ReplayBuffer", "Sampler",
    "SequenceStorage", "Source", "Storage", "UniformSampler", "checked_priorities",
]  # fmt: skip
