"""Evaluators: environments and a policy that samples in them; here those of this GMI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.telemetry.phases import phase

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole


@dataclass(frozen=True)
class Sampled:
    """The times and episodes that came with a batch.

    `read` gives the seconds of this GMI until the batch was there, and the episodes that ended. On
    a GPU it waits for the device: call it when all work of the update is queued. NotFiniteError if
    the environments gave what cannot be learned from: call it before losses are looked at.
    """

    read: Callable[[], tuple[tuple[float, ...], Seen]]
    worker_seconds: Mapping[int, Sequence[float]] = field(default_factory=dict)  # see Progress


class Evaluators(Protocol):
    """The evaluators that sample for one GMI that trains, wherever they are."""

    batch: Batch  # [T, N] that `sample` fills, N all their environments

    def sample(self, iteration: int) -> Sampled | None:
        """Fill `batch` with the present policy; None, in all GMIs alike, if nobody will."""

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


def local_evaluator(role: ActingRole, env: VecEnv, batch: Batch) -> LocalEvaluator:
    """Returns the evaluator of a role with environments of its own."""
    name = role.mgr.config.env.id
    return LocalEvaluator(
        role.collector(env, batch),
        lambda: role.warn(f"{name} cannot be saved; its episodes begin anew"),
    )


class LocalEvaluator:
    """The environments of this GMI, and the policy that is trained here: nothing is sent."""

    def __init__(self, collector: Collector, warn_not_saved: Callable[[], None]) -> None:
        """`warn_not_saved` is called when environments cannot be restored."""
        self._collector, self._warn_not_saved = collector, warn_not_saved
        self.batch = collector.batch

    def sample(self, iteration: int) -> Sampled:
        with phase("infer"):
            self._collector.collect(iteration)
        return Sampled(self._collector.read)

    def state_dict(self) -> dict[str, Any]:
        return self._collector.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self._collector.load_state_dict(state):
            self._warn_not_saved()

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        return True, ""

    def dismiss(self) -> None:
        """Tells nobody: there is no other GMI."""

    def close(self) -> None:
        self._collector.close()
