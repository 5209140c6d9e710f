"""Defines evaluators, environments and a policy that samples in them, and those of this GMI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.telemetry.experience import Use
from gmi_drl.roles.telemetry.phases import phase

if TYPE_CHECKING:
    from gmi_drl.roles.optimizers.learner import Learner
    from gmi_drl.roles.role.acting import ActingRole
    from gmi_drl.roles.role.manager import GMI_manager

# The seconds of this GMI until a batch was there, the episodes that ended, and the seconds of each
# worker by gmi_id (see Progress).
Account = tuple[tuple[float, ...], Seen, Mapping[int, Sequence[float]]]

_NEVER: Final = 2**64 - 1


class Evaluators(Protocol):
    """The evaluators that sample for one GMI that trains, wherever they are."""

    batch: Batch  # [T, N] that `sample` fills, N all their environments
    dropped_steps: int  # of environments, that came too late for the last batch

    @property
    def of_policies(self) -> Sequence[Seen]:
        """Returns the episodes of the agents of each policy, of the last `read`, if several."""

    def sample(self, iteration: int) -> bool:
        """Fills `batch` with the present policy; False, in all GMIs, where evaluators have left."""

    def read(self) -> Account:
        """Returns what came with the batch.

        On a GPU it waits for the device: call it when all work of the update is queued, and before
        losses are looked at: NotFiniteError if the environments gave what cannot be learned from.
        """

    def uses(self) -> list[Use]:
        """Returns which processes sampled the last batch."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the evaluators of this GMI."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on as the one that gave it."""

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        """Does what `Optimizer.save_parts` says."""

    def dismiss(self) -> None:
        """Tells the evaluators of other GMIs that training is done. Collective."""

    def close(self) -> None:
        """Lets captured work go."""


class LocalEvaluator:
    """The environments of this GMI, and the policy that is trained here: nothing is sent.

    With `drop_slowest` all GMIs but so many are waited for: the slowest stop sampling before their
    next step, as in DD-PPO (Wijmans et al., 2020), and their batches are left out.
    """

    @property
    def of_policies(self) -> Sequence[Seen]:
        return self._collector.of_groups

    def __init__(
        self,
        role: ActingRole,
        env: VecEnv,
        batch: Batch,
        learner: Learner,
        drop_slowest: int = 0,
    ) -> None:
        self._mgr, self.batch, self._learner = role.mgr, batch, learner
        self._collector = role.collector(env, batch)
        self._group = role.mgr.context.group
        self._peers = [gmi.gmi_id for gmi in role.mgr.layout.gmis]
        self._awaited = len(self._peers) - drop_slowest
        self._is_left_out, self.dropped_steps = False, 0

    def sample(self, iteration: int) -> bool:
        self._iteration = iteration
        with phase("infer"):
            if self._awaited == len(self._peers):
                self._collector.collect(iteration)
            else:
                self._race(iteration)
        return True

    def _race(self, iteration: int) -> None:
        """Samples until enough GMIs have, and agrees on which were first. Collective."""
        tally = self._mgr.tally
        # Of this iteration alone, and not of the one that a re-formed group takes again.
        mark = (self._group.generation << 32) + iteration + 1

        def is_late() -> bool:
            return sum(tally[peer, "sampled"] == mark for peer in self._peers) >= self._awaited

        taken = self._collector.collect(iteration, is_late)
        steps, num_env = self.batch["reward"].shape
        if taken == steps:
            tally[self._mgr.GMI_id, "sampled"] = mark
        clock = self._learner.clock
        clock.begin("reduce")  # it counts as `reduce`, as the meeting behind it does without a race
        with phase("reduce"):
            # One clock for all processes of a host.
            times_ns = self._group.exchange(perf_counter_ns() if taken == steps else _NEVER)
        clock.stop()
        order = sorted(range(len(times_ns)), key=lambda rank: (times_ns[rank], rank))
        self._is_left_out = self._group.rank in order[self._awaited :]
        self._learner.leave_out(self._is_left_out)
        self.dropped_steps = taken * num_env if self._is_left_out else 0

    def read(self) -> Account:
        return (*self._collector.read(), {})

    def uses(self) -> list[Use]:
        if self._is_left_out:
            return []
        steps, process = self.batch["reward"].numel(), self._mgr.context.process
        return [Use(self._mgr.GMI_id, process, self._iteration, 1, steps)]

    def state_dict(self) -> dict[str, Any]:
        return self._collector.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self._collector, state, self._mgr)

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        return True, ""

    def dismiss(self) -> None:
        """Does nothing, as there are none in other GMIs."""

    def close(self) -> None:
        self._collector.close()


def restore(collector: Collector, state: dict[str, Any], mgr: GMI_manager) -> None:
    """Goes on in the environments of a checkpoint; warns where its adapter could not save them."""
    if not collector.load_state_dict(state):
        mgr.warn(f"{mgr.config.env.id} cannot be saved; its episodes begin anew")
