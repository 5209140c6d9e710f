"""Synchronous rounds: all evaluators sample, then all GMIs that train do so, and they agree.

GMIs meet in each gradient, and at the end of a round, to agree on how far the run is. Evaluators
are in this GMI (template tcg_ex) or in others of its device (tdg_ex). With the same environments
and random numbers the policy is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gmi_drl.comm import Group
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.evaluators.evaluator import Evaluators, LocalEvaluator
from gmi_drl.roles.evaluators.remote import RemoteEvaluators
from gmi_drl.roles.policies.policy_map import PolicyMap
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.episodes import RecentEpisodes, Seen
from gmi_drl.roles.seeds import DRAWS, draw_on
from gmi_drl.roles.telemetry.experience import ExperienceCodec
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import Progress

from . import round_steps
from .gradient_step import check_finite
from .learner import Learner
from .optimizer import NoMore, Optimizer, Round

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole
    from gmi_drl.roles.role.manager import GMI_manager

    from .replay import OnReplay


@dataclass(frozen=True)
class Sampling:
    """Says who samples for a role: its own environments, or else workers it is joined with."""

    role: ActingRole
    env: VecEnv | None
    workers: dict[int, int]  # environments by gmi_id
    batch: Batch  # of all of them
    generator: torch.Generator  # of minibatches, this GMI's own
    drop_slowest: int  # workers, or GMIs that train, that are not waited for

    @classmethod
    def of(cls, role: ActingRole) -> Sampling:
        """Builds the role's policy and the batch that it samples into."""
        mgr, env = role.mgr, None
        context = mgr.context
        joined = sorted(context.wires.out_of(mgr.GMI_id))
        workers = {gmi_id: mgr.layout.gmi(gmi_id).num_env for gmi_id in joined}
        if workers:
            role.build_for_spaces()
        else:
            env = role.build_with_env()
        drop_slowest = mgr.config.algorithm.dropped_agents
        if env is not None and drop_slowest and env.device.type != "cpu":
            raise RoleError(
                f"algorithm.drop_slowest={drop_slowest}; on {env.device} all steps of a horizon "
                "are queued at once, and a GMI that is late cannot leave them. Leave it out, or "
                "use template tdg_ex."
            )
        if workers and drop_slowest >= len(workers):  # of a layout's file
            raise RoleError(
                f"algorithm.drop_slowest={drop_slowest}; must be less than the agents of a "
                f"trainer: {len(workers)} in this layout. Lower it, or use more GMIs."
            )
        num_env = sum(workers.values()) - drop_slowest * mgr.config.env.num_env
        batch = role.batch(num_env if env is None else env.num_env)
        # By rank, not by GMI: what is learned does not depend on where agents are.
        seed = mgr.seed(DRAWS, context.group.rank)
        generator = torch.Generator(context.device).manual_seed(seed)
        return cls(role, env, workers, batch, generator, drop_slowest)

    @property
    def dropped_trainers(self) -> int:
        """Counts the trainers that are left out of each update."""
        return 0 if self.workers else self.drop_slowest

    def evaluators(self, learner: Learner) -> Evaluators:
        """Make those of other GMIs where the role is joined with some, and else its own."""
        if self.env is None:
            return RemoteEvaluators(self.role, self.workers, self.batch, learner, self.drop_slowest)
        return LocalEvaluator(self.role, self.env, self.batch, learner, self.drop_slowest)


class SyncRounds(Optimizer):
    """One batch a round, in each of the GMIs that train.

    It is trained on for all epochs. With a `replay` it is put there, and draws are trained on.
    """

    def __init__(
        self,
        mgr: GMI_manager,
        evaluators: Evaluators,
        learner: Learner,
        generator: torch.Generator,
        replay: OnReplay | None = None,
    ) -> None:
        """`generator` is that of the minibatches."""
        self._evaluators, self.learner, self._replay = evaluators, learner, replay
        policy = learner.algorithm.policy
        names = list(policy.policies) if isinstance(policy, PolicyMap) else []
        self._policy_episodes = {name: RecentEpisodes() for name in names}
        self._codec = ExperienceCodec(
            len(mgr.layout.gmis) if mgr.context.wires.links else 1,
            is_recorded=mgr.config.run.lineage > 0,
            has_replay=replay is not None,
        )
        self._num_extra = 1 + len(Seen._fields) * len(names)
        self.progress = Progress(mgr.layout, extra=self._num_extra + self._codec.numel)
        self._generator = generator
        self._drops = mgr.config.algorithm.dropped_agents > 0
        self._round_steps = round_steps(mgr.config, mgr.layout)
        self._total_steps = mgr.config.run.total_steps
        self._stop_requested = mgr.stop_requested

    def connect(self, group: Group, iteration: int) -> None:
        self.learner.connect(group)
        self.progress.connect(group)
        if self._replay is not None:
            self._replay.connect(group)

    def step(self, iteration: int, steps: int) -> Round | NoMore:
        learner = self.learner
        learner.anneal(steps / self._total_steps)
        if self._replay is not None:
            self._replay.anneal(steps / self._total_steps)
        learner.algorithm.before_sampling(steps)
        if not self._evaluators.sample(iteration):
            return NoMore(stopped=False)
        with phase("train"):
            (self._replay or learner).update(self._evaluators.batch)
        # All work of a GPU is queued: from here on the host waits for it.
        seconds, episodes, worker_seconds = self._evaluators.read()
        own_seconds, stats = learner.clock.read(), learner.stats()
        reduce_s = own_seconds.get("reduce", 0.0)  # a GMI alone may have all of it in its graphs
        phases = (*seconds, own_seconds["train"], reduce_s)
        kept = None if self._replay is None else self._replay.kept(iteration + 1)
        extra = [float(self._evaluators.dropped_steps)]
        extra += [number for totals in self._evaluators.of_policies for number in totals]
        extra += self._codec.pack(self._evaluators.uses(), kept=kept)
        agreed = self.progress.agree(
            episodes, phases, self._stop_requested(), worker_seconds, extra
        )
        # Only now: a GMI whose environments gave NaN has said so and left. The others learn that
        # when they meet, and must not report divergence instead.
        check_finite(stats)
        if self._replay is not None:
            self._replay.check()
        speed = {"steps_per_s": self._round_steps / sum(phases)}
        metrics = speed | agreed.metrics | stats
        if self._drops:
            metrics["dropped_steps"] = int(sum(row[0] for row in agreed.extra))
        metrics |= self._returns_of_policies(agreed.extra)
        if self._replay is not None:
            metrics |= self._replay.metrics()
        experience = self._codec.unpack([row[self._num_extra :] for row in agreed.extra])
        return Round(self._round_steps, metrics, agreed.gmi_seconds, agreed.stop, experience)

    def _returns_of_policies(self, told: list[list[float]]) -> dict[str, float | None]:
        """Returns the mean returns of the agents of each policy; none where there is one policy."""
        sums = [sum(column) for column in zip(*told, strict=True)][1:]
        means, size = {}, len(Seen._fields)
        for number, (name, recent) in enumerate(self._policy_episodes.items()):
            recent.add(Seen(*sums[number * size : (number + 1) * size]))
            means[f"{name}/return_mean"] = recent.means()[0]
        return means

    def state_dict(self) -> dict[str, Any]:
        shared = super().state_dict()
        if self._policy_episodes:
            episodes = {name: recent.state_dict() for name, recent in self._policy_episodes.items()}
            shared["episodes_of_policies"] = episodes
        return shared if self._replay is None else shared | self._replay.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, recent in self._policy_episodes.items():
            recent.load_state_dict(state["episodes_of_policies"][name])
        if self._replay is not None:
            self._replay.load_state_dict(state)

    def own_state(self) -> dict[str, Any]:
        device = self._generator.device
        state = {
            "shuffles": self._generator.get_state(),
            "global_generator": torch.get_rng_state(),  # a loss of the user's own may draw from it
        }
        if device.type == "cuda":
            state["device_generator"] = torch.cuda.get_rng_state(device)
        if self._replay is not None:
            state |= self._replay.own_state()
        return state | self._evaluators.state_dict()

    def load_own_state(self, state: dict[str, Any]) -> None:
        draw_on(self._generator, state["shuffles"])
        torch.set_rng_state(state["global_generator"])
        device = self._generator.device
        if device.type == "cuda" and "device_generator" in state:  # else saved by a CPU
            torch.cuda.set_rng_state(state["device_generator"], device)
        if self._replay is not None:
            self._replay.load_own_state(state)
        self._evaluators.load_state_dict(state)

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        return self._evaluators.save_parts(begin, iteration)

    def finish(self) -> None:
        self._evaluators.dismiss()

    def close(self) -> None:
        self._evaluators.close()
        super().close()
