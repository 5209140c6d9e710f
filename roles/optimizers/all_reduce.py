"""Synchronous training: every GMI's evaluators sample, and every GMI that trains differentiates.

GMIs meet three times in a round: to merge the moments of what was sampled, to reduce each
minibatch's gradient, and to agree on how far the run is. Where the evaluators are is theirs: in
this GMI (template tcg_ex) or in others of its device (tdg_ex). With the same environments and
random numbers the policy is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from gmi_drl.comm import Group
from gmi_drl.roles.evaluators.evaluator import Evaluators, local_evaluator
from gmi_drl.roles.evaluators.remote import remote_evaluators
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import Progress

from .gradient_step import check_finite
from .learner import Learner
from .optimizer import NoMore, Round

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole

_SHUFFLES: Final = 5  # the stream of seeds that minibatches are drawn by


def make(role: ActingRole) -> AllReduce:
    """The optimizer of a role, over its own environments or the workers that it is joined with."""
    mgr, env = role.mgr, None
    context, settings = mgr.context, mgr.config.algorithm
    joined = sorted(context.wires.out_of(mgr.GMI_id))
    workers = {gmi_id: mgr.layout.gmi(gmi_id).num_env for gmi_id in joined}
    if workers:
        role.build_for_spaces()
    else:
        env = role.make_env()
        mgr.close_later(env.close)
        role.build(env)
    batch = role.batch(sum(workers.values()) if env is None else env.num_env)
    # By rank, not by GMI: what is learned does not depend on where agents are.
    generator = torch.Generator(context.device).manual_seed(mgr.seed(_SHUFFLES, context.group.rank))
    learner = Learner(
        role.algorithm,
        generator,
        batch,
        clock=Clock(context.device),
        pool=role.pool(context.device),
        capture_loss=role.loss_is_capturable(),
    )
    evaluators: Evaluators = (
        remote_evaluators(role, workers, batch, learner)
        if env is None
        else local_evaluator(role, env, batch)
    )
    return AllReduce(
        learner,
        evaluators,
        Progress(mgr.layout),
        generator,
        round_steps=settings.horizon * sum(gmi.num_env for gmi in mgr.layout.gmis),
        total_steps=mgr.config.run.total_steps,
        stop_requested=mgr.stop_requested,
    )


class AllReduce:
    """One batch a round, its gradients averaged over the GMIs that train."""

    def __init__(
        self,
        learner: Learner,
        evaluators: Evaluators,
        progress: Progress,
        generator: torch.Generator,
        *,
        round_steps: int,
        total_steps: int,
        stop_requested: Callable[[], bool],
    ) -> None:
        """`generator` is that of the learner; `round_steps`: of a round, by all GMIs."""
        self.learner, self._evaluators, self._progress = learner, evaluators, progress
        self._generator, self._stop_requested = generator, stop_requested
        self._round_steps, self._total_steps = round_steps, total_steps

    def connect(self, group: Group, iteration: int) -> None:
        self.learner.connect(group)
        self._progress.connect(group)

    def step(self, iteration: int, steps: int) -> Round | NoMore:
        learner = self.learner
        learner.anneal(steps / self._total_steps)
        learner.algorithm.before_sampling(steps)
        sampled = self._evaluators.sample(iteration)
        if sampled is None:
            return NoMore(stopped=False)
        with phase("train"):
            learner.update(self._evaluators.batch)
        # A GPU has got all its work: from here on it is waited for.
        seconds, episodes = sampled.read()
        took, stats = learner.clock.read(), learner.stats()
        reduce_s = took.get("reduce", 0.0)  # a GMI alone may have all of it in its graphs
        phases = (*seconds, took["train"], reduce_s)
        agreed = self._progress.agree(
            episodes, phases, self._stop_requested(), sampled.worker_seconds
        )
        # Only now: a GMI whose environments gave NaN has said so and left, which the others learn
        # when they meet, and not that they have diverged.
        check_finite(stats)
        speed = {"steps_per_s": self._round_steps / sum(phases)}
        metrics = speed | agreed.metrics | stats
        return Round(self._round_steps, metrics, agreed.gmi_seconds, agreed.stop)

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict() | {"episodes": self._progress.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self._progress.load_state_dict(state["episodes"])

    def own_state(self) -> dict[str, Any]:
        device = self._generator.device
        state = {
            "shuffles": self._generator.get_state(),
            "global_generator": torch.get_rng_state(),  # a loss of the user's own may draw from it
        }
        if device.type == "cuda":
            state["device_generator"] = torch.cuda.get_rng_state(device)
        return state | self._evaluators.state_dict()

    def load_own_state(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["shuffles"])
        torch.set_rng_state(state["global_generator"])
        device = self._generator.device
        if device.type == "cuda" and "device_generator" in state:  # else saved by a CPU
            torch.cuda.set_rng_state(state["device_generator"], device)
        self._evaluators.load_state_dict(state)

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        return self._evaluators.save_parts(begin, iteration)

    def finish(self) -> None:
        self._evaluators.dismiss()

    @property
    def return_mean(self) -> float | None:
        return self._progress.return_mean

    def outcome(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._evaluators.close()
        self.learner.close()
