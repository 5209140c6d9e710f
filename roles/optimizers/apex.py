"""Asynchronous training on kept experience: agents send all the time, each trainer has a replay.

Ape-X (Horgan et al., 2018) with a replay in each GMI that trains, in place of processes of its own.
A trainer puts each batch of segments that comes into its replay, and takes the updates that are due
for it before it takes the next. The links thus hold agents to the ratio of updates to steps: while
a trainer is behind they are full, and agents wait. Rows come with priorities that agents give them,
where the algorithm says how.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.comm import Group
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay import MADE, MADE_OF
from gmi_drl.roles.telemetry.experience import Kept

from .async_samples import AsyncSampleRounds
from .optimizer import NoMore, Round
from .replay import goals_env, on_replay

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole


# Fields of every segment, whatever an algorithm names.
_ALWAYS: Final = ("observation", "raw_observation")


def make(role: ActingRole) -> ApexRounds:
    """Make the optimizer of a role, on the links from its agents.

    RoleError unless the algorithm's segments have all that its replay keeps.
    """
    role.build_for_spaces()
    algorithm = type(role.algorithm)
    columns = [name for name in algorithm.replayed if name not in MADE]
    needed = dict.fromkeys([*columns, *(MADE_OF if len(columns) < len(algorithm.replayed) else ())])
    missing = [name for name in needed if name not in (*_ALWAYS, *algorithm.segment_fields)]
    if missing:
        raise RoleError(
            f"{algorithm.__name__}: segment_fields={algorithm.segment_fields}; under apex agents "
            f"send what the replay keeps and makes transitions of. Add {', '.join(missing)}."
        )
    return ApexRounds(role)


class ApexRounds(AsyncSampleRounds):
    """One batch of segments a round into the replay, and the updates that are due for it."""

    trains_once, has_replay = False, True

    def __init__(self, role: ActingRole) -> None:
        super().__init__(role, role.pool(role.mgr.context.device), role.loss_is_capturable())
        config = role.mgr.config
        example_batch = role.batch(config.env.num_env * config.experience.batch_segments)
        num_agents = len(role.mgr.context.wires.into(role.GMI_id))
        self._replay = on_replay(
            self.learner, example_batch, role.stacking, partial(goals_env, role),
            in_turn=num_agents * config.experience.batch_segments == 1,
        )  # fmt: skip

    def connect(self, group: Group, iteration: int) -> None:
        super().connect(group, iteration)
        self._replay.connect(group)

    def _train(self, batch: Batch, steps: int) -> None:
        progress = steps / self._mgr.config.run.total_steps
        self.learner.anneal(progress)
        self._replay.anneal(progress)
        # Copied, as a trainer that goes back must find it unchanged in the link's memory.
        columns = {name: column.clone() for name, column in batch.columns.items()}
        self._replay.update(Batch(columns, batch.bootstrap, sequences=batch.sequences))

    def step(self, iteration: int, steps: int) -> Round | NoMore:
        outcome = super().step(iteration, steps)
        self._replay.check()
        if isinstance(outcome, Round):
            outcome.metrics.update(self._replay.metrics())
        return outcome

    def _kept(self, iteration: int) -> Kept:
        return self._replay.kept(iteration)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | self._replay.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._replay.load_state_dict(state)

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | self._replay.own_state()

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        self._replay.load_own_state(state)
