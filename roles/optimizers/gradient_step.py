"""One step of gradient descent that all trainers take together: reduce, clip, Adam.

The gradient, what a loss reports, and the gradient's squared norm travel in one bucket: one
reduction a minibatch, after which every rank holds the same numbers and takes the same step.
On a GPU a step waits for nothing but the other ranks, and is captured as CUDA graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.roles.algorithms.algorithm import Algorithm, Losses
from gmi_drl.roles.errors import DivergedError, RoleError
from gmi_drl.roles.graphs import Graph, Pool
from gmi_drl.roles.policies.flat_parameters import FlatParameters
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.roles.telemetry.phases import phase

from .descent import Descent, Stepper
from .noise_scale import NoiseMeter
from .parameter_groups import GroupedDescent


class GradientStep:
    """The flat parameters of a network, their optimizer, and the bucket of their gradient.

    `clock` gets the time of reductions as "reduce", of the rest as "train".
    """

    def __init__(
        self,
        algorithm: Algorithm,
        clock: Clock,
        *,
        static: bool | None,
        pool: Pool | None,
        dropped: int = 0,
        weighs_rows: bool = False,
    ) -> None:
        """`static`: work as on a GPU, on any device (None: on all devices but the CPU).

        `pool`: where `repeat` captures its work; None: it is not captured. `dropped`: the number of
        ranks that are left out of each mean; `weigh` says which. `weighs_rows`: a rank counts by
        its number of rows, which `weigh_rows` says.
        """
        stats, settings = algorithm.stats, algorithm.settings
        if settings.followed_kl is not None and "kl" not in stats:
            raise RoleError(
                "the learning rate follows the KL divergence (algorithm.schedule: adaptive), and "
                "the algorithm's `stats` have no kl. Report it, or use schedule: constant."
            )
        self._stats, self._clock, self._pool = stats, clock, pool
        self.parameters = FlatParameters(algorithm.policy.network)
        self.descent: Stepper
        if rates := algorithm.learning_rates:
            self.descent = GroupedDescent(self.parameters, settings, rates, static, algorithm.idle)
        else:
            self.descent = Descent(self.parameters, settings, static)
        device = self.parameters.data.device
        self._totals = torch.zeros(len(self._stats), device=device)
        # This rank's weight in a sum that is divided by all ranks; None: all are alike.
        self._dropped = dropped
        self._weight = torch.ones((), device=device) if dropped or weighs_rows else None
        self._steps = 0
        self.noise = NoiseMeter()
        self._together: dict[Hashable, Repeated] = {}

    def connect(self, group: Group) -> None:
        """Makes the bucket that gradients are reduced in, again after the group was re-formed."""
        self.close()  # what was captured is bound to the bucket of before
        n, device = self.parameters.numel, self.parameters.data.device
        numel = bucket_numel(self.parameters, self._stats)
        # Gradients are written straight into the memory that is reduced.
        self._rank = group.rank
        self._reducer = group.bucket("gradient", numel, torch.float32, device)
        self.parameters.bind_gradients(self._reducer.buffer)
        self._own_stats = self._reducer.buffer[n:-1]
        # Shared and read-only. Views are made once: making one costs as much as its use.
        result = self._reducer.result
        self._gradient, self._means = result[:n], result[n:-1]
        kl = self._stats.index("kl") if "kl" in self._stats else None
        self._kl = torch.zeros((), device=device) if kl is None else result[n + kl]
        self._num_counted = self._reducer.size - self._dropped
        self.noise.connect(self._reducer, n, self._num_counted)
        self._totals.zero_()  # of an update that the re-forming cut short
        self._steps = 0

    def weigh(self, is_left_out: bool) -> None:
        """Say whether this rank is among the `dropped` from now on."""
        assert self._weight is not None
        self._weight.fill_(0.0 if is_left_out else self._reducer.size / self._num_counted)

    def weigh_rows(self, counts: Tensor) -> None:
        """Weighs this rank by its share of all ranks' rows [k]; one that is left out has none."""
        assert self._weight is not None
        self._weight.copy_(counts[self._rank] * len(counts) / counts.sum().clamp(min=1.0))

    @property
    def weights(self) -> list[Tensor]:
        """Returns the tensors that `weigh` and `weigh_rows` change."""
        return [] if self._weight is None else [self._weight]

    def take(self, losses: Losses) -> None:
        """Take one step down the mean over all ranks of `losses.total`; collective."""
        self.differentiate(losses)
        meet_timed(self._reduce, self._clock)
        self.descend(losses.groups)
        self.noise.measure()
        self._steps += 1

    def apply(self, gradient: Tensor, losses: Tensor) -> None:
        """Takes one step down a gradient [n] from elsewhere, without other ranks."""
        self._reducer.buffer[: len(gradient)].copy_(gradient)
        self._own_stats.copy_(losses)
        self._reduce()
        self.descend()
        self.noise.measure()
        self._steps += 1

    def repeat(self, loss: Callable[[], Losses], kind: Hashable = None) -> Mapping[str, Tensor]:
        """Takes one step down `loss`, which is one function for each `kind` since `connect`.

        Collective. It does the same work on the same memory each time. Returns `Losses.extras`, in
        the same tensors each time.
        """
        if kind not in self._together:
            self._together[kind] = Repeated(self, loss)
        extras = self._together[kind]()
        self.noise.measure()  # not captured: few minibatches count
        self._steps += 1
        return extras

    def together(
        self, differentiate: Callable[[], object], descend: Callable[[], object]
    ) -> Together:
        """Returns the step that is made of these functions, captured where this one is."""
        return Together(
            differentiate, self._reduce, descend,
            alone=self._reducer.size == 1, keep=[*self.descent.changed, self._totals],
            clock=self._clock, pool=self._pool, name="a minibatch's loss",
        )  # fmt: skip

    def close(self) -> None:
        """Let captured work go; it waits for what is queued."""
        for repeated in self._together.values():
            repeated.close()
        self._together.clear()

    def means(self) -> dict[str, float | None]:
        """Returns the means of the stats over all ranks and the steps since the last call.

        They are None without a step. Learning rate and noise scale are added. On a GPU this is the
        one call that waits for the device.
        """
        steps = self._steps
        values = self._totals / max(steps, 1)
        if measured := self.noise.measured:
            values = torch.cat([values, torch.stack(measured)])
        *values_read, learning_rate = self.descent.read_beside(values)
        means, noise_values = values_read[: len(self._stats)], values_read[len(self._stats) :]
        self._totals.zero_()
        self._steps = 0
        stats = dict(zip(self._stats, means if steps else [None] * len(means), strict=True))
        noise_scale = self.noise.take(noise_values)
        return stats | {"learning_rate": learning_rate, "noise_scale": noise_scale}

    def differentiate(self, losses: Losses) -> None:
        """Writes the gradient of the losses, and what they report, into the bucket."""
        self.parameters.differentiate(losses.total)
        if self._stats:
            with torch.no_grad():
                torch.stack([losses.stats[name] for name in self._stats], out=self._own_stats)
        if self._weight is not None:
            self._reducer.buffer[-1].zero_()  # is multiplied each time, and not always written
        self.noise.share(always=self._pool is not None)
        if self._weight is not None:
            # Not a product alone: what is left out need not be finite.
            bucket = self._reducer.buffer
            bucket.copy_(torch.where(self._weight > 0.0, bucket * self._weight, 0.0))

    def _reduce(self) -> None:
        self._reducer.reduce("mean")

    @torch.no_grad()
    def descend(self, groups: tuple[str, ...] | None = None) -> None:
        """Step down the mean gradient, in these groups of parameters or in all."""
        self.descent.step(self._gradient, self._kl, groups)
        self._totals += self._means


class Repeated:
    """Steps of one kind, whose loss is the same function each time."""

    def __init__(self, step: GradientStep, loss: Callable[[], Losses]) -> None:
        self._step, self._loss = step, loss
        self._groups: tuple[str, ...] | None = None  # as of all losses of this kind
        # Copies, as the next graph uses the memory again that a graph allocates.
        self._extras: dict[str, Tensor] = {}
        self._together = step.together(self._differentiate, self._descend)

    def __call__(self) -> Mapping[str, Tensor]:
        self._together()
        return self._extras

    def close(self) -> None:
        """Let captured work go; it waits for what is queued."""
        self._together.close()

    def _differentiate(self) -> None:
        losses = self._loss()
        self._groups = losses.groups
        for name, extra in losses.extras.items():
            if name not in self._extras:
                self._extras[name] = extra.detach().clone()
            self._extras[name].copy_(extra.detach())
        self._step.differentiate(losses)

    def _descend(self) -> None:
        self._step.descend(self._groups)


def bucket_numel(parameters: FlatParameters, stats: Sequence[str]) -> int:
    """Returns the numbers that are reduced for each minibatch."""
    return parameters.numel + len(stats) + 1


def check_finite(stats: Mapping[str, float | None]) -> None:
    """Raise DivergedError if one of the means of losses is not finite."""
    means = {name: mean for name, mean in stats.items() if mean is not None}
    if not all(map(math.isfinite, means.values())):
        raise DivergedError(means)


class Together:
    """Calls `before`, `meet` and `after`; collective.

    With `pool` the first call captures, and waits for the device: `before` and `after` are a graph
    each, or where `alone` (the group has one rank) all three are one. Each does the same work on
    the same memory every time; `keep` are the tensors that they change and others read, see Graph.
    `clock` gets the time of `meet` as "reduce" and of `after` as "train"; where one graph holds all
    three, nothing is "reduce".
    """

    def __init__(
        self,
        before: Callable[[], object],
        meet: Callable[[], object],
        after: Callable[[], object],
        *,
        alone: bool,
        keep: Sequence[Tensor],
        clock: Clock,
        pool: Pool | None,
        name: str,
    ) -> None:
        self._before, self._meet, self._after = before, meet, after
        self._alone, self._keep, self._clock = alone, keep, clock
        self._pool, self._name = pool, name
        self._graphs: tuple[Graph, ...] = ()

    def __call__(self) -> None:
        if self._pool is None:
            self._before()
            meet_timed(self._meet, self._clock)
            self._after()
            return
        if not self._graphs:
            self._graphs = self._captured(self._pool)
        self._graphs[0]()
        if not self._alone:
            meet_timed(self._meet, self._clock)
            self._graphs[1]()

    def close(self) -> None:
        """Let captured work go; waits for what is queued."""
        for graph in self._graphs:
            graph.close()
        self._graphs = ()

    def _all(self) -> None:
        self._before()
        self._meet()
        self._after()

    def _captured(self, pool: Pool) -> tuple[Graph, ...]:
        device, name = pool.device, self._name
        works = {name: self._before, f"what follows {name}": self._after}
        if self._alone:
            works = {name: self._all}
        # A loss of the user's own may draw from torch's generators.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            return tuple(
                Graph(work, device, keep=self._keep, pool=pool, name=name)
                for name, work in works.items()
            )


def meet_timed(meet: Callable[[], object], clock: Clock) -> None:
    """Calls `meet`, which is "reduce" on `clock`; what follows is "train"."""
    clock.begin("reduce")
    with phase("reduce"):
        meet()
    clock.begin("train")
