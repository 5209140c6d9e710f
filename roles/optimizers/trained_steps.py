"""Tells agents that sample in other GMIs how many steps of environments a policy was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import round_steps

if TYPE_CHECKING:
    from gmi_drl.roles.role.manager import GMI_manager

_WORDS: Final = 1 << 64  # that a counter of the tally can be: a negative number is one of the upper


class TrainedSteps:
    """Tells agents, who are told versions alone, how many steps a trainer's policy has had by each.

    Rounds of this launch are all of one size. Those before a run was resized were of others: the
    trainer notes in the tally how many steps more, or fewer, they have made of it.
    """

    def __init__(self, mgr: GMI_manager, trainer: int | None = None) -> None:
        """`trainer`: the GMI whose policy it is; None: the first of those this agent sends to."""
        if trainer is None:
            trainer = min(mgr.context.wires.out_of(mgr.GMI_id))
        self._tally, self._trainer = mgr.tally, trainer
        self._each = round_steps(mgr.config, mgr.layout)

    def note(self, version: int, steps: int) -> None:
        """Says that the policy of `version` was trained on so many steps."""
        self._tally[self._trainer, "other_rounds"] = (steps - version * self._each) % _WORDS

    def at(self, version: int) -> int:
        """Returns the steps that the policy of `version` was trained on."""
        more = self._tally[self._trainer, "other_rounds"]
        return version * self._each + (more if more < _WORDS // 2 else more - _WORDS)
