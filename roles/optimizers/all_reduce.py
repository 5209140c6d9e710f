"""Synchronous training on fresh batches: each GMI on its own, with reduced gradients.

GMIs meet three times in a round: to merge the moments of what was sampled, to reduce each
minibatch's gradient, and to agree on how far the run is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .learner import Learner
from .sync_rounds import Sampling, SyncRounds

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole


def make(role: ActingRole) -> SyncRounds:
    """Make the optimizer of a role, over its own environments or the workers it is joined with."""
    sampling = Sampling.of(role)
    pool, capturable = role.pool(role.mgr.context.device), role.loss_is_capturable()
    learner = Learner(
        role.algorithm, sampling.generator, sampling.batch, pool=pool, capture_loss=capturable,
        dropped=sampling.dropped_trainers,
    )  # fmt: skip
    return SyncRounds(role.mgr, sampling.evaluators(learner), learner, sampling.generator)
