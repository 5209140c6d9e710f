"""Defines an optimizer: who samples, differentiates, applies, publishes and waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from gmi_drl.comm import Group
from gmi_drl.roles.telemetry.experience import Experience
from gmi_drl.roles.telemetry.progress import Progress

from .learner import Learner


@dataclass(frozen=True)
class Round:
    """The outcome of one round of an optimizer, the same in all GMIs that train."""

    steps: int  # of environments, by all GMIs
    metrics: dict[str, Any]  # to be written down
    gmi_seconds: list[dict[str, float]]  # of each phase, of each GMI of the layout
    stop: bool  # a GMI was asked to stop
    experience: Experience | None = None  # that was used; None where lineage is not recorded


@dataclass(frozen=True)
class NoMore:
    """There is nothing more to train on, in all GMIs alike."""

    stopped: bool  # because that was asked for; else training was done


class Optimizer(Protocol):
    """A role makes one; `gmi_drl.roles.state.training.Training` runs it to its end.

    `step` is collective, as is all that says so. Recovery, checkpoints and metrics wrap it.
    """

    learner: Learner
    progress: Progress

    @property
    def board_version(self) -> int:
        """Returns the version that agents know the policy by; -1: they know it by the iteration."""

    @property
    def refused(self) -> int:
        """Returns how many connections of strangers its links from other hosts have refused."""

    def connect(self, group: Group, iteration: int) -> None:
        """Make the buckets of what trainers share. Collective.

        Called again after the group was re-formed, with the state of after `iteration`.
        """

    def step(self, iteration: int, steps: int) -> Round | NoMore:
        """Takes one round: number `iteration` + 1, after `steps` steps of environments."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what all GMIs hold alike, partly the tensors themselves.

        It is copied or written before training goes on.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `state_dict` gave."""

    def own_state(self) -> dict[str, Any]:
        """Returns what is this GMI's alone in a checkpoint."""

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Go on from what `own_state` gave, after `load_state_dict`."""

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        """Have other GMIs write their parts of a checkpoint, after `begin`.

        `begin` says why it cannot be begun. Returns False if they have left, as training was done,
        and why a part is missing.
        """

    def finish(self) -> None:
        """Ends what serves training: all is trained and saved. Collective."""

    def outcome(self) -> dict[str, Any]:
        """Returns what this GMI adds to the result that all share."""

    def close(self) -> None:
        """Let go of what was opened, and of captured work."""


class BaseRounds:
    """Implements what is alike in optimizers whose GMIs have no state of their own."""

    learner: Learner
    progress: Progress
    board_version: ClassVar[int] = -1
    refused: ClassVar[int] = 0

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict() | {"episodes": self.progress.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.progress.load_state_dict(state["episodes"])

    def own_state(self) -> dict[str, Any]:
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Loads nothing, as GMIs have no state of their own."""

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        return True, ""

    def finish(self) -> None:
        """Ends nothing: nobody is served."""

    def outcome(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.learner.close()
