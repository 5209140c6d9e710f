"""Gradients that are made where experience is: of a batch just sampled, by moments of its own.

`GradientLoop` is the agent that brings them, in place of its experience: A3C's worker (Mnih et al.,
2016), or that of a parameter server (Li et al., 2014).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gmi_drl.roles.algorithms.algorithm import Algorithm, checked
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.optimizers import is_sharded
from gmi_drl.roles.policies.flat_parameters import FlatParameters, Piece, PublishedPolicy
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.minibatch import joined
from gmi_drl.roles.telemetry.progress import WORKER_STATS

from .rollout_worker import RolloutLoop

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole


class GradientMaker:
    """Differentiates the loss of a batch, into `gradient` [n] as `parameters` lie.

    The moments of a batch are the algorithm's, then those of what was observed.
    """

    def __init__(
        self, algorithm: Algorithm, normalizers: Normalizers, parameters: FlatParameters
    ) -> None:
        self._algorithm, self._observations = algorithm, normalizers.observations
        device = parameters.data.device
        self.gradient = torch.zeros(parameters.numel, device=device)
        self._parameters = parameters
        parameters.bind_gradients(self.gradient)
        count = moments_of(algorithm, normalizers)
        self._moments = torch.zeros(count, dtype=torch.float64, device=device)

    def measure(self, batch: Batch) -> Tensor:
        """Returns the moments [m] of a batch, in the same tensor each time."""
        count = self._algorithm.num_batch_moments
        self._algorithm.measure(batch, self._moments[:count])
        if self._observations is not None:
            self._observations.measure(batch["raw_observation"], self._moments[count:])
        return self._moments

    def prepare(self, batch: Batch, everyone: Tensor) -> None:
        """Fills in the targets of `batch`, by the moments [k, m] of all."""
        moments = everyone[:, : self._algorithm.num_batch_moments]
        self._algorithm.learn_batch_moments(moments)
        self._algorithm.postprocess(batch, moments)

    def differentiate(self, minibatch: Batch) -> Tensor:
        """Writes `gradient`, of the loss of a minibatch; returns the values of `stats`."""
        algorithm = self._algorithm
        losses = checked(algorithm, algorithm.losses(minibatch))
        if losses.groups is not None:
            raise RoleError(
                f"{type(algorithm).__name__}.losses gave groups={losses.groups}; all groups take a "
                "step down a gradient that is made where experience is. Leave groups out, or use "
                "optimizer all_reduce; from Python rl.Local."
            )
        self._parameters.differentiate(losses.total)
        return torch.stack([losses.stats[name].detach() for name in algorithm.stats])

    def clip(self, max_norm: float | None) -> None:
        """Scales `gradient` to a norm of at most `max_norm`, if there is one.

        It is done here as a trainer with a piece of the parameters does not know the whole norm.
        """
        if max_norm:
            norm = float(torch.linalg.vector_norm(self.gradient))
            self.gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))


def moments_of(algorithm: Algorithm, normalizers: Normalizers) -> int:
    """Counts the moments of a batch: the algorithm's, and those of what was observed."""
    normalizer = normalizers.observations
    return algorithm.num_batch_moments + (0 if normalizer is None else normalizer.num_moments)


class GradientCodec:
    """A gradient as the bytes of one packet: numbers of its making in float64, then itself."""

    def __init__(self, moments: int, losses: int, numel: int) -> None:
        """`numel` float32 numbers are a gradient, or a piece of one."""
        self._counts = (WORKER_STATS, moments, losses)
        self._numbers, self._numel = sum(self._counts), numel
        self.nbytes = 8 * self._numbers + 4 * self._numel
        self.schema = json.dumps({"numbers": self._counts, "gradient": self._numel}).encode()

    def pack(
        self,
        memory: Tensor,
        gradient: Tensor,
        stats: Sequence[float],
        moments: Tensor,
        losses: Tensor,
    ) -> None:
        """Writes them into memory [>= nbytes] uint8."""
        numbers, packed_gradient = self._parts(memory)
        numbers_of_stats = torch.tensor(stats, dtype=torch.float64, device=moments.device)
        numbers.copy_(torch.cat([numbers_of_stats, moments, losses.double()]))
        packed_gradient.copy_(gradient)

    def unpack(self, memory: Tensor) -> tuple[Tensor, list[float], Tensor, Tensor]:
        """Returns gradient, stats, moments and losses; the first is a view of `memory`."""
        numbers, gradient = self._parts(memory)
        stats, moments, losses = torch.split(numbers.clone(), list(self._counts))
        return gradient, stats.tolist(), moments, losses.float()

    def _parts(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        end = 8 * self._numbers
        return memory[:end].view(torch.float64), memory[end : self.nbytes].view(torch.float32)


@dataclass(frozen=True)
class Share:
    """Holds one trainer's share: a piece of the parameters, and for the last one the statistics.

    Both ends of a link make it. A trainer alone holds everything.
    """

    piece: FlatParameters | Piece
    published: PublishedPolicy
    codec: GradientCodec
    has_statistics: bool

    @classmethod
    def of(cls, role: ActingRole, parameters: FlatParameters, place: int, trainers: int) -> Share:
        """Returns the share of the trainer at `place` of `trainers`."""
        algorithm, is_last = role.algorithm, place == trainers - 1
        piece: FlatParameters | Piece = parameters
        if trainers > 1:
            piece = Piece(parameters, place, trainers)
        normalizers = role.normalizers if is_last else Normalizers(None, None)
        moments = moments_of(algorithm, normalizers) if is_last else 0
        codec = GradientCodec(moments, len(algorithm.stats), piece.numel)
        return cls(piece, PublishedPolicy(piece, normalizers), codec, is_last)


class GradientLoop(RolloutLoop):
    """Follows the orders of trainers, and answers with the gradient of what it has sampled."""

    def _make_codec(self, num_env: int) -> None:
        role: ActingRole = self._role
        mgr = role.mgr
        trainers = len(mgr.context.wires.out_of(mgr.GMI_id))
        self._shares = [Share.of(role, self._parameters, i, trainers) for i in range(trainers)]
        self._published = [share.published for share in self._shares]
        self._codecs = [share.codec for share in self._shares]
        settings = mgr.config.algorithm
        self._max_norm = settings.max_grad_norm if is_sharded(settings) else None
        self._maker = GradientMaker(role.algorithm, role.normalizers, self._parameters)

    def _prepare(self, batch: Batch) -> None:
        maker = self._maker
        self._moments = maker.measure(batch).clone()
        maker.prepare(batch, self._moments[None])
        self._losses = maker.differentiate(joined(batch))
        maker.clip(self._max_norm)

    def _pack(self, place: int, batch: Batch, stats: Sequence[float], memory: Tensor) -> None:
        share, moments = self._shares[place], self._moments
        if not share.has_statistics:
            moments, stats = moments[:0], [*[0.0] * (len(stats) - 1), stats[-1]]
        gradient = self._maker.gradient
        if isinstance(share.piece, Piece):
            gradient = gradient[share.piece.place]
        share.codec.pack(memory, gradient, stats, moments, self._losses)
