"""Samples of several evaluators, side by side in one batch."""

from __future__ import annotations

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
