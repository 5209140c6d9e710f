"""One step of gradient descent that all trainers take together: reduce, clip, Adam.

The gradient and the parts of a minibatch's loss travel in one bucket: one reduction a minibatch,
after which every rank holds the same numbers and takes the same step.

On a GPU a step waits for nothing but the other ranks. Where its loss does the same work each time
(`RepeatedStep`) it is captured: loss and gradient are one CUDA graph and what follows the reduction
another; for a rank that is alone all is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gmi_drl.comm import Group
from gmi_drl.placement import AlgorithmConfig

from .clock import Clock
from .descent import Descent, descent_of
from .errors import DivergedError
from .graphs import Graph, Pool, graphs_on
from .phases import phase
from .policy import FlatParameters


class GradientStep:
    """The flat parameters of a policy, their optimizer, and the bucket of their gradient.

    `tail` names the parts of a loss that are reported; the first is the KL divergence, which the
    learning rate may follow. `clock` gets what reductions take as "reduce", the rest as "train".
    """

    def __init__(
        self,
        policy: nn.Module,
        tail: Sequence[str],
        settings: AlgorithmConfig,
        clock: Clock,
        descent: Callable[[FlatParameters, AlgorithmConfig], Descent] = descent_of,
    ) -> None:
        self._tail, self._clock = tuple(tail), clock
        self.parameters = FlatParameters(policy)
        self.descent = descent(self.parameters, settings)
        self._totals = torch.zeros(len(self._tail), device=self.parameters.data.device)
        self._steps = 0

    def connect(self, group: Group) -> None:
        """Make the bucket that gradients are reduced in; again after the group was re-formed."""
        n, device = self.parameters.numel, self.parameters.data.device
        # Autograd accumulates straight into the memory that is reduced.
        self._reducer = group.bucket("gradient", n + len(self._tail), torch.float32, device)
        self.parameters.bind_gradients(self._reducer.buffer)
        self._totals.zero_()  # of an update that the re-forming cut short
        self._steps = 0

    def take(self, parts: Any) -> None:
        """One step down the mean over all ranks of `parts.total`; collective."""
        self._differentiate(parts)
        self._reduce()
        self._descend()
        self._steps += 1

    def _differentiate(self, parts: Any) -> None:
        buffer = self._reducer.buffer
        buffer.zero_()
        torch.autograd.backward(parts.total)
        with torch.no_grad():
            tail = [getattr(parts, name) for name in self._tail]
            torch.stack(tail, out=buffer[self.parameters.numel :])

    def _reduce(self) -> None:
        self._clock.begin("reduce")
        with phase("reduce"), torch.no_grad():
            self._reducer.reduce("mean")
        self._clock.begin("train")

    @torch.no_grad()
    def _descend(self) -> None:
        # The result is shared and read-only.
        n, result = self.parameters.numel, self._reducer.result
        self.descent.step(result[:n], result[n])
        self._totals += result[n:]

    def means(self) -> dict[str, float]:
        """Means of the tail over all ranks and the steps since the last call, and the learning

        rate. On a GPU, the one thing that waits for the device.
        """
        found = self.descent.read_beside(self._totals / self._steps)
        self._totals.zero_()
        self._steps = 0
        return dict(zip((*self._tail, "learning_rate"), found, strict=True))


class Recorded(Protocol):
    """Work that was captured; see `gmi_drl.roles.graphs.Graph`."""

    def __call__(self) -> None:
        """Do it again."""

    def close(self) -> None:
        """Let its memory go."""


class Recorder(Protocol):
    """What captures work, and leaves no trace of having done it in the tensors of `keep`."""

    def __call__(
        self, run: Callable[[], object], device: torch.device, *, keep: Sequence[Tensor]
    ) -> Recorded: ...


class RepeatedStep(GradientStep):
    """Steps down one `loss`, which does the same work on the same memory each time."""

    def __init__(
        self,
        policy: nn.Module,
        tail: Sequence[str],
        settings: AlgorithmConfig,
        clock: Clock,
        loss: Callable[[], Any],
        recorder: Recorder | None = None,
        descent: Callable[[FlatParameters, AlgorithmConfig], Descent] = descent_of,
    ) -> None:
        """`recorder`: what captures the work; None: it is done anew each time."""
        super().__init__(policy, tail, settings, clock, descent)
        self._loss, self._recorder = loss, recorder
        self._recorded: tuple[Recorded, ...] = ()

    def connect(self, group: Group) -> None:
        self.close()  # it is bound to buckets of before
        super().connect(group)

    def close(self) -> None:
        """Let captured work go; it waits for what is queued."""
        for recorded in self._recorded:
            recorded.close()
        self._recorded = ()

    def again(self) -> None:
        """One step down the mean over all ranks of the loss; collective.

        The first one captures, and waits for the device.
        """
        if self._recorder is None:
            self.take(self._loss())
            return
        if not self._recorded:
            self._recorded = self._record(self._recorder)
        self._recorded[0]()
        if len(self._recorded) > 1:
            self._reduce()
            self._recorded[1]()
        self._steps += 1

    def _record(self, recorder: Recorder) -> tuple[Recorded, ...]:
        device = self.parameters.data.device
        changed = [*self.descent.changed, self._totals]
        if self._reducer.size == 1:
            return (recorder(self._whole, device, keep=changed),)
        return (
            recorder(self._evaluate, device, keep=()),
            recorder(self._descend, device, keep=changed),
        )

    def _evaluate(self) -> None:
        self._differentiate(self._loss())

    def _whole(self) -> None:
        self._evaluate()
        self._reducer.reduce("mean")
        self._descend()


def recorder_on(device: torch.device, wanted: bool) -> Recorder | None:
    """What captures steps on `device` in a pool of its own; None: do them anew each time."""
    if not graphs_on(device, wanted):
        return None
    pool = Pool(device)

    def record(
        run: Callable[[], object], device: torch.device, *, keep: Sequence[Tensor]
    ) -> Recorded:
        before = torch.cuda.get_rng_state(device)  # a loss of the user's own may draw from it
        graph = Graph(run, device, keep=keep, pool=pool)
        torch.cuda.set_rng_state(before, device)
        return graph

    return record


def check_finite(stats: dict[str, float]) -> None:
    """DivergedError if one of the means of losses is not finite."""
    if not all(math.isfinite(mean) for mean in stats.values()):
        raise DivergedError(stats)
