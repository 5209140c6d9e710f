"""A parameter server: GMIs that train hold the parameters in pieces, and agents send gradients.

Each agent fetches the pieces of all, samples and differentiates, and brings each its piece of the
gradient, which is applied as it comes (Li et al., 2014; RLlib's paper, figure 5a). With one GMI
that trains this is `async_gradients`. A round is as many gradients as there are agents, in every
GMI, and at its end the pieces are put together: so that checkpoints, evaluations and GMIs that come
back have the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gmi_drl.comm import Group, solo_group
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.policies.flat_parameters import Piece

from .async_gradients import AsyncGradientRounds
from .descent import Descent, Stepper
from .parameter_groups import check_one_group

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole


def make(role: ActingRole) -> ParameterServerRounds:
    """Make the optimizer of a role, which holds a piece, over the agents of all."""
    role.build_for_spaces()
    return ParameterServerRounds(role)


class ParameterServerRounds(AsyncGradientRounds):
    """Holds one piece of the parameters, and takes its steps."""

    def __init__(self, role: ActingRole) -> None:
        check_one_group(role.algorithm)
        super().__init__(role)
        group, settings = role.mgr.context.group, role.algorithm.settings
        if settings.followed_kl is not None:
            raise RoleError(
                "the learning rate follows the KL divergence (algorithm.schedule: adaptive), and "
                "each piece of the parameters would have one of its own. Use schedule: constant."
            )
        self._group, parameters = group, self.learner.parameters
        self._pieces = [Piece(parameters, index, group.size) for index in range(group.size)]
        self._piece = self._pieces[group.rank]
        self._descent = Descent.of_piece(self._piece, settings)
        self._losses = torch.zeros(len(role.algorithm.stats), device=parameters.data.device)
        self._count = 0

    def _connect(self, group: Group) -> None:
        self.learner.connect(solo_group())
        device = self.learner.parameters.data.device
        max_numel = max(piece.numel for piece in self._pieces)
        self._shared = group.bucket("pieces", 3 * max_numel, torch.float32, device)
        self._statistics = None
        if (observations := self._algorithm.normalizers.observations) is not None:
            numel = len(observations.tensors[0])
            self._statistics = group.bucket("statistics", numel, torch.float64, device)
        self._losses.zero_()  # of a round that the re-forming cut short
        self._count = 0
        self._take_piece()

    def _apply(self, gradient: Tensor, losses: Tensor, moments: Tensor) -> None:
        learner, algorithm = self.learner, self._algorithm
        if self._share.has_statistics:
            num_own = algorithm.num_batch_moments
            algorithm.learn_batch_moments(moments[None, :num_own])
            if algorithm.normalizers.observations is not None:
                algorithm.normalizers.observations.update(moments[num_own:])
        self._descent.learning_rate = learner.descent.learning_rate
        with torch.no_grad():
            self._descent.step(gradient, losses.new_zeros(()))
        learner.updates += 1
        algorithm.after_step(learner.updates)
        self._losses += losses
        self._count += 1

    def _end_round(self) -> dict[str, float | None]:
        self._gather_pieces()
        means = (self._losses / self._count).tolist()
        self._losses.zero_()
        self._count = 0
        stats: dict[str, float | None] = dict(zip(self._algorithm.stats, means, strict=True))
        return stats | {"learning_rate": self.learner.descent.learning_rate, "noise_scale": None}

    @torch.no_grad()
    def _gather_pieces(self) -> None:
        """Copies all pieces into the learner, and the last rank's statistics; collective."""
        full, numel = self.learner.descent, self._piece.numel
        _, step, *_ = self._descent.changed
        rows = self._shared.buffer.view(3, -1)
        for row, tensor in zip(rows, _vectors(self._descent), strict=True):
            row[:numel].copy_(tensor)
        for piece, row in zip(self._pieces, self._shared.gather(), strict=True):
            for vector, part in zip(_vectors(full), row.view(3, -1), strict=True):
                vector[piece.place].copy_(part[: piece.numel])
        full.changed[1].copy_(step)
        if self._statistics is not None:
            observations = self._algorithm.normalizers.observations
            assert observations is not None
            self._statistics.buffer.copy_(observations.tensors[0])
            observations.load_state_dict({"moments": self._statistics.gather()[-1]})

    @torch.no_grad()
    def _take_piece(self) -> None:
        """Copies this GMI's piece from the learner."""
        full = self.learner.descent
        for tensor, vector in zip(_vectors(self._descent), _vectors(full), strict=True):
            tensor.copy_(vector[self._piece.place])
        self._descent.changed[1].copy_(full.changed[1])

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        missing = begin()
        is_saved = True
        if not missing and self._group.rank == 0:  # one rank is enough to have agents write theirs
            saved = self._coordinator.save(iteration)
            is_saved, missing = saved is not None, saved or ""
        return all(self._group.exchange(int(is_saved))), missing

    def finish(self) -> None:
        self._group.barrier()  # agents leave when the first rank dismisses them
        super().finish()


def _vectors(descent: Stepper) -> list[Tensor]:
    """Returns parameters and both of Adam's moments."""
    data, _, first, second = descent.changed[:4]
    return [data, first, second]
