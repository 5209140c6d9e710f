"""Synchronous PPO: what the trainer of a GMI does with a rollout, wherever that was collected.

GMIs that train meet three times in an iteration: to merge the moments of what was seen, to reduce
each minibatch's gradient, and to agree on how far the run is. The launcher is told, never asked.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.roles.algorithms.ppo import Learner, LossParts, ppo_loss
from gmi_drl.roles.graphs import graphs_on
from gmi_drl.roles.policies.policy import FlatParameters
from gmi_drl.roles.returns.targets import Targets
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.samples.rollout import Rollout
from gmi_drl.roles.state.learned import Learned
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import Progress

from .gradient_step import check_finite
from .training import Training

_SHUFFLES: Final = 5  # the stream of seeds that minibatches are drawn by


@dataclass(frozen=True)
class Collected:
    """What came with a rollout.

    `read` gives the seconds of this GMI until the rollout was there, and the episodes that ended.
    On a GPU it waits for the device: call it when all work of the update is queued. NotFiniteError
    if the environments gave what cannot be learned from: call it before losses are looked at.
    """

    read: Callable[[], tuple[tuple[float, ...], Seen]]
    agents: Mapping[int, Sequence[float]] = field(default_factory=dict)  # see Progress.agree


class SyncTraining(Training):
    """PPO on one rollout an iteration. A subclass collects it."""

    # For a class with a `loss` of its own: whether it does the same operations on its arguments
    # each time, with no Python value that changes, and reads no tensor's value in Python. Then it
    # is captured as a CUDA graph (`run.capture`).
    capturable_loss = False

    def loss(self, *args: Any) -> LossParts:
        """The loss of one minibatch; see `gmi_drl.roles.algorithms.ppo.ppo_loss` for the arguments.

        They are the same tensors each time, with other numbers.
        """
        return ppo_loss(*args)

    @abstractmethod
    def _collect(self) -> Collected | None:
        """Fill `_rollout` with the present policy; None, on all GMIs alike, if nobody will."""

    def _prepare(self, rollout: Rollout) -> None:
        """What learns from `rollout`, with `_policy` and `_normalizers`; ends a `_setup`."""
        algorithm, device = self.mgr.config.algorithm, self.mgr.context.device
        self._rollout = rollout
        # By rank, not by GMI: what is learned does not depend on where agents are.
        self._shuffles = torch.Generator(device).manual_seed(
            self.mgr.seed(_SHUFFLES, self.group.rank)
        )
        self._clock, pool = Clock(device), self._pool(device)
        self._targets = Targets(rollout, algorithm, self._normalizers.values, self._clock, pool)
        self._learner = Learner(
            self._policy,
            rollout.columns,
            rollout.reward.numel(),
            algorithm,
            self._shuffles,
            self.loss,
            clock=self._clock,
            pool=pool if self._loss_is_capturable() else None,
        )
        self._progress = Progress(self.mgr.layout)
        normalizers = self._normalizers
        self._learned = Learned(
            self._learner, normalizers.observations, normalizers.values, self._progress
        )
        self._steps_per_iteration = algorithm.horizon * sum(
            gmi.num_env for gmi in self.mgr.layout.gmis
        )

    def _loss_is_capturable(self) -> bool:
        if self.capturable_loss or type(self).loss is SyncTraining.loss:
            return True
        if graphs_on(self.mgr.context.device, self.mgr.config.run.capture):
            self._warn(
                f"{type(self).__name__}.loss may depend on more than its arguments, so updates are "
                "not captured as CUDA graphs, which is slower. If it does not, say "
                "`capturable_loss = True` in the class."
            )
        return False

    def _close_captured(self) -> None:
        self._targets.close()
        self._learner.close()

    def _connect(self) -> None:
        self._clock.clear()
        self._targets.connect(self.group)
        self._learner.connect(self.group)
        self._progress.connect(self.group)

    def _iterate(self) -> None:
        self._set_learning_rate()
        collected = self._collect()
        if collected is None:
            self._finished = True
            return
        clock, rollout = self._clock, self._rollout
        clock.begin("train")
        beat("update")
        with phase("train"):
            moments = self._targets.fill()
            self._learner.update(rollout.flat, rollout.log_std)
            if (normalizer := self._normalizers.observations) is not None:
                # Only now: this rollout was seen through the old statistics.
                normalizer.update(moments)
        clock.stop()
        # A GPU has got all its work: from here on it is waited for.
        seconds, seen = collected.read()
        took, stats = clock.read(), self._learner.stats()
        reduce_s = took.get("reduce", 0.0)  # a GMI alone may have all of it in its graphs
        self._iteration += 1
        self._steps += self._steps_per_iteration
        self._report(seen, collected.agents, (*seconds, took["train"], reduce_s), stats)
        self._check_identical_when_due()

    def _set_learning_rate(self) -> None:
        settings = self.mgr.config.algorithm
        if settings.schedule == "linear":
            left = 1.0 - self._steps / self.mgr.config.run.total_steps
            self._learner.learning_rate = settings.learning_rate * max(left, 0.0)

    def _report(
        self,
        seen: Seen,
        agents: Mapping[int, Sequence[float]],
        phases: tuple[float, ...],
        stats: dict[str, float],
    ) -> None:
        """Tell the other GMIs and the launcher; decide together whether this was the last one."""
        agreed = self._progress.agree(seen, phases, self.mgr.stop_requested(), agents)
        # Only now: a GMI whose environments gave NaN has said so and left, which the others learn
        # when they meet, and not that they have diverged.
        check_finite(stats)
        self._stopped = agreed.stop
        speed = {"steps_per_s": self._steps_per_iteration / sum(phases)}
        self._conclude(speed | agreed.metrics | stats, agreed.gmi_seconds)

    def _parameters(self) -> FlatParameters:
        return self._learner.parameters

    def _own_state(self) -> dict[str, Any]:
        device = self.mgr.context.device
        state = {
            "shuffles": self._shuffles.get_state(),
            "global_generator": torch.get_rng_state(),  # a loss of the user's own may draw from it
        }
        if device.type == "cuda":
            state["device_generator"] = torch.cuda.get_rng_state(device)
        return state

    def _load_own(self, state: dict[str, Any]) -> None:
        self._shuffles.set_state(state["shuffles"])
        torch.set_rng_state(state["global_generator"])
        device = self.mgr.context.device
        if device.type == "cuda" and "device_generator" in state:  # else saved by a CPU
            torch.cuda.set_rng_state(state["device_generator"], device)
