"""Defines an optimizer: who samples, differentiates, applies, publishes and waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


class Optimizer:
    """A role makes one; `gmi_drl.roles.state.training.Training` runs it to its end.

    `step` is collective, as is all that says so. Recovery, checkpoints and metrics wrap it. What is
    written here is for GMIs that have no state of their own and serve nobody.
    """

    learner: Learner
    progress: Progress

    @property
    def board_version(self) -> int:
        """Returns the version that agents know the policy by; -1: they know it by the iteration."""
        return -1

    @property
    def refused(self) -> int:
        """Returns how many connections of strangers its links from other hosts have refused."""
        return 0

    def connect(self, group: Group, iteration: int) -> None:
        """Makes the buckets of what trainers share. Collective.

        Called again after the group was re-formed, with the state of after `iteration`.
        """
        raise NotImplementedError

    def step(self, iteration: int, steps: int) -> Round | NoMore:
        """Takes one round: number `iteration` + 1, after `steps` steps of environments."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Returns what all GMIs hold alike, partly the tensors themselves.

        It is copied or written before training goes on.
        """
        return self.learner.state_dict() | {"episodes": self.progress.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `state_dict` gave."""
        self.learner.load_state_dict(state)
        self.progress.load_state_dict(state["episodes"])

    def own_state(self) -> dict[str, Any]:
        """Returns what is this GMI's alone in a checkpoint."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `own_state` gave, after `load_state_dict`."""

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        """Has other GMIs write their parts of a checkpoint, after `begin`.

        `begin` says why it cannot be begun. Returns False if they have left, as training was done,
        and why a part is missing.
        """
        return True, ""

    def finish(self) -> None:
        """Ends what serves training: all is trained and saved. Collective."""

    def outcome(self) -> dict[str, Any]:
        """Returns what this GMI adds to the result that all share."""
        return {}

    def close(self) -> None:
        """Lets go of what was opened, and of captured work."""
        self.learner.close()


def share_of(count: int, rank: int, size: int) -> range:
    """Returns which of `count` pieces of work are those of a rank: as many as others', or one more.

    In the order of their ranks they are 0 to `count` - 1.
    """
    return range(count * rank // size, count * (rank + 1) // size)
