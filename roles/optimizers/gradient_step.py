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
from typing import Any, TypeVar

import torch
from torch import nn

from gmi_drl.comm import Group
from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.errors import DivergedError, RoleError
from gmi_drl.roles.graphs import Pool
from gmi_drl.roles.policies.policy import FlatParameters
from gmi_drl.roles.telemetry.clock import Clock

from .descent import descent_of
from .together import Together, meet_timed

P = TypeVar("P")


def checked_parts(loss: Callable[..., object], found: object, kind: type[P]) -> P:
    """What `loss` gave, if it is a `kind` whose `total` is a scalar tensor; RoleError otherwise."""
    total = getattr(found, "total", None)
    if isinstance(found, kind) and isinstance(total, torch.Tensor) and not total.ndim:
        return found
    owner = getattr(loss, "__self__", None)
    name = f"{type(owner).__name__}.loss" if owner is not None else "the loss"
    shape = f"of shape {tuple(total.shape)}" if isinstance(total, torch.Tensor) else repr(total)
    told = f"a total {shape}" if isinstance(found, kind) else f"a {type(found).__name__}"
    raise RoleError(
        f"{name} gave {told}; must give {kind.__module__}.{kind.__name__}, whose total is a scalar "
        "tensor. Change what super().loss(...) gives by dataclasses.replace."
    )


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
        static: bool | None = None,
    ) -> None:
        """`static`: the way of a GPU, wherever the policy is (None: on all devices but the CPU)."""
        self._tail, self._clock = tuple(tail), clock
        self.parameters = FlatParameters(policy)
        self.descent = descent_of(self.parameters, settings, static)
        self._totals = torch.zeros(len(self._tail), device=self.parameters.data.device)
        self._steps = 0

    def connect(self, group: Group) -> None:
        """Make the bucket that gradients are reduced in; again after the group was re-formed."""
        n, device = self.parameters.numel, self.parameters.data.device
        # Autograd accumulates straight into the memory that is reduced.
        self._reducer = group.bucket("gradient", n + len(self._tail), torch.float32, device)
        self.parameters.bind_gradients(self._reducer.buffer)
        self._parts = self._reducer.buffer[n:]
        # Shared and read-only. Views made once: to make one costs as much as what is done with it.
        result = self._reducer.result
        self._gradient, self._kl, self._means = result[:n], result[n], result[n:]
        self._totals.zero_()  # of an update that the re-forming cut short
        self._steps = 0

    def take(self, parts: Any) -> None:
        """One step down the mean over all ranks of `parts.total`; collective."""
        self._differentiate(parts)
        meet_timed(self._reduce, self._clock)
        self._descend()
        self._steps += 1

    def _differentiate(self, parts: Any) -> None:
        self._reducer.buffer.zero_()
        torch.autograd.backward(parts.total)
        with torch.no_grad():
            torch.stack([getattr(parts, name) for name in self._tail], out=self._parts)

    def _reduce(self) -> None:
        self._reducer.reduce("mean")

    @torch.no_grad()
    def _descend(self) -> None:
        self.descent.step(self._gradient, self._kl)
        self._totals += self._means

    def means(self) -> dict[str, float]:
        """Means of the tail over all ranks and the steps since the last call, and the learning

        rate. On a GPU, the one thing that waits for the device.
        """
        found = self.descent.read_beside(self._totals / self._steps)
        self._totals.zero_()
        self._steps = 0
        return dict(zip((*self._tail, "learning_rate"), found, strict=True))


class RepeatedStep(GradientStep):
    """Steps down one `loss`, which does the same work on the same memory each time."""

    def __init__(
        self,
        policy: nn.Module,
        tail: Sequence[str],
        settings: AlgorithmConfig,
        clock: Clock,
        loss: Callable[[], Any],
        pool: Pool | None = None,
        static: bool | None = None,
    ) -> None:
        """`pool`: where the work is captured; None: it is done anew each time."""
        super().__init__(policy, tail, settings, clock, static)
        self._loss, self._pool = loss, pool
        self._together: Together | None = None

    def connect(self, group: Group) -> None:
        self.close()  # what was captured is bound to buckets of before
        super().connect(group)
        self._together = Together(
            lambda: self._differentiate(self._loss()),
            self._reduce,
            self._descend,
            alone=self._reducer.size == 1,
            keep=[*self.descent.changed, self._totals],
            clock=self._clock,
            pool=self._pool,
            name="a minibatch's loss",
        )

    def close(self) -> None:
        """Let captured work go; it waits for what is queued."""
        if self._together is not None:
            self._together.close()

    def step(self) -> None:
        """One step down the mean over all ranks of the loss; collective."""
        assert self._together is not None
        self._together()
        self._steps += 1


def check_finite(stats: dict[str, float]) -> None:
    """DivergedError if one of the means of losses is not finite."""
    if not all(math.isfinite(mean) for mean in stats.values()):
        raise DivergedError(stats)
