"""The evaluators of template tdg_ex: in other GMIs, which collect in turn with their trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from gmi_drl.roles.policies.flat_parameters import PublishedPolicy
from gmi_drl.roles.role.readiness import heartbeats_in, send_heartbeat
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.codec import complete
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.telemetry.experience import Use
from gmi_drl.roles.telemetry.phases import phase

from .evaluator import Account
from .rollout_coordinator import RolloutCoordinator
from .rollout_worker import codec_of

if TYPE_CHECKING:
    from gmi_drl.roles.optimizers.learner import Learner
    from gmi_drl.roles.role.acting import ActingRole

_WAITS: Final = 2  # a trainer's state while its workers work; else 1, or 0 where they have left


class RemoteEvaluators:
    """Rollout workers in other GMIs, whose environments lie side by side in one batch."""

    of_policies: Sequence[Seen] = ()

    def __init__(
        self,
        role: ActingRole,
        workers: Mapping[int, int],
        batch: Batch,
        learner: Learner,
        drop_slowest: int = 0,
    ) -> None:
        """`workers` has their environments by gmi_id, in the order in which they lie in `batch`.

        With `drop_slowest` the batch has room for all but so many, which lie there as they come.
        """
        self._mgr, context, wires = role.mgr, role.mgr.context, role.mgr.context.wires
        self.batch, self._policy, self._group = batch, role.policy, context.group
        self._normalizer = role.normalizers.observations
        self._published = PublishedPolicy(learner.parameters, role.normalizers)
        self._codecs = {gmi_id: codec_of(role, num_env) for gmi_id, num_env in workers.items()}
        # Each worker's first environment in the batch.
        self._first_env = dict(zip(workers, accumulate(workers.values(), initial=0), strict=False))
        self._coordinator = RolloutCoordinator(
            wires.out_of(self._mgr.GMI_id), wires.into(self._mgr.GMI_id), self._published.numel,
            self._codecs, self._mgr.timeout, heartbeats=heartbeats_in(self._mgr.tally),
            still=lambda: self._meet(_WAITS), device=context.device,
        )  # fmt: skip
        self._drop_slowest, self.dropped_steps = drop_slowest, 0
        self._worker_steps = batch["reward"].numel() // (len(workers) - drop_slowest)

    def sample(self, iteration: int) -> bool:
        start = perf_counter()
        stats: dict[int, list[float]] = {}

        def take(worker: int, memory: Tensor) -> None:
            codec, first_env = self._codecs[worker], self._first_env[worker]
            if self._drop_slowest:
                first_env = len(stats) * codec.num_env
            stats[worker] = codec.unpack(memory, self.batch, first_env)

        with phase("wait"):
            write, drop_slowest = self._published.write, self._drop_slowest
            present = self._coordinator.collect(iteration, write, take, drop_slowest)
            if not self._all_present(present):
                return False
            complete(self.batch, self._policy, self._normalizer)
        self.dropped_steps = self._worker_steps * self._coordinator.dropped
        self._coordinator.dropped = 0
        episodes = Seen.by({worker: numbers[:3] for worker, numbers in stats.items()})
        seconds = {worker: numbers[3:-1] for worker, numbers in stats.items()}
        self._uses = [
            Use(worker, int(numbers[-1]), iteration, 1, self._worker_steps)
            for worker, numbers in stats.items()
        ]
        self._account: Account = ((perf_counter() - start,), episodes, seconds)
        return True

    def read(self) -> Account:
        return self._account

    def uses(self) -> list[Use]:
        return self._uses

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Leaves it to each worker to read its own part."""

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        missing = begin() or self._coordinator.save(iteration)
        return self._all_present(missing is not None), missing or ""

    def dismiss(self) -> None:
        self._coordinator.dismiss()  # all trainers have the last checkpoint behind them
        self._group.barrier()  # a trainer that dies before it is waited for: it has workers too

    def close(self) -> None:
        """Leaves the links to end with the process, whose successor may open them again."""

    def _all_present(self, present: bool) -> bool:
        """Tells whether the workers of all trainers are there; each trainer finds its late ones."""
        while _WAITS in (states := self._meet(present)):
            pass
        return all(states)

    def _meet(self, state: int) -> list[int]:
        states = self._group.exchange(state)
        send_heartbeat(self._mgr.tally, self._mgr.GMI_id)
        return states
