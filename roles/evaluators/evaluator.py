"""Evaluators: environments and a policy that samples in them; here those of this GMI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.telemetry.experience import Use
from gmi_drl.roles.telemetry.phases import phase

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole
    from gmi_drl.roles.role.manager import GMI_manager

# The seconds of this GMI until a batch was there, the episodes that ended, and the seconds of each
# worker by gmi_id (see Progress).
Account = tuple[tuple[float, ...], Seen, Mapping[int, Sequence[float]]]


class Evaluators(Protocol):
    """The evaluators that sample for one GMI that trains, wherever they are."""

    batch: Batch  # [T, N] that `sample` fills, N all their environments
    dropped_steps: int  # of environments, that came too late for the last batch

    @property
    def of_policies(self) -> Sequence[Seen]:
        """Returns the episodes of the agents of each policy, of the last `read`, if several."""

    def sample(self, iteration: int) -> bool:
        """Fill `batch` with the present policy; False, in all GMIs alike, if nobody will."""

    def read(self) -> Account:
        """Returns what came with the batch.

        On a GPU it waits for the device: call it when all work of the update is queued, and before
        losses are looked at: NotFiniteError if the environments gave what cannot be learned from.
        """

    def uses(self) -> list[Use]:
        """Returns who sampled the last batch."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of those of this GMI."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the one that gave it."""

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        """Does what `Optimizer.save_parts` says."""

    def dismiss(self) -> None:
        """Tell those of other GMIs that training is done. Collective."""

    def close(self) -> None:
        """Let captured work go."""


class LocalEvaluator:
    """The environments of this GMI, and the policy that is trained here: nothing is sent."""

    dropped_steps = 0

    @property
    def of_policies(self) -> Sequence[Seen]:
        return self._collector.of_groups

    def __init__(self, role: ActingRole, env: VecEnv, batch: Batch) -> None:
        self._mgr, self.batch = role.mgr, batch
        self._collector = role.collector(env, batch)

    def sample(self, iteration: int) -> bool:
        self._iteration = iteration
        with phase("infer"):
            self._collector.collect(iteration)
        return True

    def read(self) -> Account:
        return (*self._collector.read(), {})

    def uses(self) -> list[Use]:
        steps, process = self.batch["reward"].numel(), self._mgr.context.process
        return [Use(self._mgr.GMI_id, process, self._iteration, 1, steps)]

    def state_dict(self) -> dict[str, Any]:
        return self._collector.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self._collector, state, self._mgr)

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        return True, ""

    def dismiss(self) -> None:
        """There are none in other GMIs."""

    def close(self) -> None:
        self._collector.close()


def restore(collector: Collector, state: dict[str, Any], mgr: GMI_manager) -> None:
    """Go on in the environments of a checkpoint; warns where its adapter could not save them."""
    if not collector.load_state_dict(state):
        mgr.warn(f"{mgr.config.env.id} cannot be saved; its episodes begin anew")
