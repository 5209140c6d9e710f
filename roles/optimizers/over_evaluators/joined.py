"""Samples of several evaluators, side by side in one batch."""

from __future__ import annotations

from numbers import Integral

from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.evaluators.graph import PolicyGraph, tensor_of
from gmi_drl.roles.evaluators.standalone import Sample, codec_of


class JoinedSamples:
    """A batch with room for `count` samples of evaluators of `num_env` environments each."""

    def __init__(self, graph: PolicyGraph, num_env: int, count: int) -> None:
        self.batch = graph.batch(num_env * count)
        self._codec, self._num_env = codec_of(graph, num_env), num_env

    def put(self, place: int, sample: Sample) -> None:
        """Copy a sample into the environments of that place."""
        self._codec.unpack(tensor_of(sample.memory), self.batch, place * self._num_env)


def checked_samples(samples: int) -> int:
    """Returns `samples` if a batch can have so many; RoleError if not."""
    if not isinstance(samples, Integral):
        raise RoleError(f"samples={samples!r}; a batch has a whole number of them. Round it.")
    if samples < 1:
        raise RoleError(f"samples={samples}; a batch has 1 or more. Raise it.")
    return samples
