"""Tells agents that sample in other GMIs how many steps of environments a policy was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import round_steps

if TYPE_CHECKING:
    from gmi_drl.roles.role.manager import GMI_manager

_VALUES: Final = 1 << 64  # of a counter of the tally; the upper half is negative numbers


class TrainedSteps:
    """Tells agents, which know versions alone, how many steps a trainer's policy was trained on.

    All rounds of this launch have one size. Rounds before a run was resized had others: the trainer
    notes in the tally how many steps more, or fewer, these have made.
    """

    def __init__(self, mgr: GMI_manager, trainer: int | None = None) -> None:
        """`trainer`: the GMI whose policy it is; None: the first of those this agent sends to."""
        if trainer is None:
            trainer = min(mgr.context.wires.out_of(mgr.GMI_id))
        self._tally, self._trainer = mgr.tally, trainer
        self._steps = round_steps(mgr.config, mgr.layout)

    def note(self, version: int, steps: int) -> None:
        """Says that the policy of `version` was trained on so many steps."""
        self._tally[self._trainer, "other_rounds"] = (steps - version * self._steps) % _VALUES

    def at(self, version: int) -> int:
        """Returns the steps that the policy of `version` was trained on."""
        extra = self._tally[self._trainer, "other_rounds"]
        return version * self._steps + (extra if extra < _VALUES // 2 else extra - _VALUES)
