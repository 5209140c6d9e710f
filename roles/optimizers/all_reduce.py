"""Synchronous training on fresh batches: each GMI on its own, with reduced gradients.

GMIs meet three times in a round: to merge the moments of what was sampled, to reduce each
minibatch's gradient, and to agree on how far the run is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.telemetry.clock import Clock

from .learner import Learner
from .sync_rounds import Sampling, SyncRounds

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole


def make(role: ActingRole) -> SyncRounds:
    """Make the optimizer of a role, over its own environments or the workers it is joined with."""
    sampling, device = Sampling.of(role), role.mgr.context.device
    learner = Learner(
        role.algorithm,
        sampling.generator,
        sampling.batch,
        clock=Clock(device),
        pool=role.pool(device),
        capture_loss=role.loss_is_capturable(),
    )
    return sampling.rounds(OnFreshBatches(learner))


class OnFreshBatches:
    """Trains on each batch once, for all epochs."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def update(self, batch: Batch) -> None:
        self.learner.update(batch)

    def metrics(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """It has none."""

    def own_state(self) -> dict[str, Any]:
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """It has none."""
