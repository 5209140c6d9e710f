"""Keeps steps and draws minibatches of them: storage, sampler and limiter (docs/replay.md)."""

from .limiter import Limiter
from .samplers import PrioritizedSampler, Sampler, UniformSampler
from .source import Replay, Source
from .storage import Storage

__all__ = [
    "Limiter", "PrioritizedSampler", "Replay", "Sampler", "Source", "Storage", "UniformSampler",
]  # fmt: skip
