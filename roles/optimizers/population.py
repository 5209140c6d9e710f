"""Evolution: each GMI tries its share of the perturbed policies, and all take the same step.

Directions are known by their numbers, from which any GMI draws them again: what GMIs exchange is
returns, steps, and the moments of observations. Each then makes the whole update in one thread, in
the order of the numbers, so that parameters are the same bits for any number of GMIs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gmi_drl.comm import Group, solo_group
from gmi_drl.roles.algorithms.evolution import Evolution
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.evaluators.aggregator import Tried
from gmi_drl.roles.evaluators.episodes import RETURN, STEPS, PerturbedEpisodes
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.telemetry.experience import ExperienceCodec, Use
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import Progress

from .evolution_step import EvolutionStep
from .gradient_step import check_finite
from .learner import Learner
from .optimizer import NoMore, Optimizer, Round, share_of

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole


def make(role: ActingRole) -> PopulationRounds:
    """Make the optimizer of a role, over its own environments."""
    env = role.build_with_env()
    if not isinstance(role.algorithm, Evolution):
        raise RoleError(
            f"{type(role.algorithm).__name__} weighs no directions by their returns, which "
            "optimizer population needs. Derive it from gmi_drl.roles.algorithms.evolution."
            "Evolution, or use another optimizer."
        )
    settings, normalizer = role.algorithm.settings, role.normalizers.observations
    episodes = PerturbedEpisodes(
        env, role.policy.network, normalizer,  # type: ignore[arg-type]
        seed=role.mgr.config.run.seed, longest=settings.horizon, noise=settings.noise,
    )  # fmt: skip
    return PopulationRounds(role, role.algorithm, episodes)


class PopulationRounds(Optimizer):
    """Tries all directions once a round, and steps along them."""

    def __init__(self, role: ActingRole, algorithm: Evolution, episodes: PerturbedEpisodes) -> None:
        mgr, settings = role.mgr, algorithm.settings
        self._episodes, self._group = episodes, mgr.context.group
        # It draws nothing: what it is given is the gradient of the whole population.
        self.learner = Learner(algorithm, torch.Generator(mgr.context.device))
        self._step = EvolutionStep(algorithm, self.learner, mgr.config.run.seed)
        self._codec = ExperienceCodec(1, is_recorded=mgr.config.run.lineage > 0)
        self.progress = Progress(mgr.layout, extra=self._codec.numel)
        self._gmi_id, self._process = mgr.GMI_id, mgr.context.process
        self._total_steps = mgr.config.run.total_steps
        self._directions = settings.directions
        self._stop_requested = mgr.stop_requested

    def connect(self, group: Group, iteration: int) -> None:
        self._group = group
        self.learner.connect(solo_group())
        self.progress.connect(group)
        largest = -(-self._directions // group.size)
        self._shared = group.bucket("episodes", largest * 2 * self._episodes.width, torch.float64)

    def _share(self, rank: int) -> range:
        """Returns the numbers of the directions that a rank tries."""
        return share_of(self._directions, rank, self._group.size)

    def step(self, iteration: int, steps: int) -> Round | NoMore:
        learner, clock = self.learner, self._episodes.clock
        learner.anneal(steps / self._total_steps)
        clock.clear()  # of a round that was given up
        learner.clock.clear()
        parameters = self._step.parameters()
        directions = self._share(self._group.rank)
        with phase("infer"):
            rows = self._episodes.play(parameters, iteration, directions)
        learner.clock.begin("reduce")
        with phase("reduce"):
            everyone = self._gather(rows)
        learner.clock.begin("train")
        with phase("train"):
            pairs, num_lost = self._step.take(Tried.of(everyone, 0), parameters, iteration)
        learner.clock.stop()
        stats, seconds = learner.stats(), {**clock.read(), **learner.clock.read()}
        check_finite(stats)
        ended = rows.view(-1, rows.shape[-1])
        ended = ended[ended.isfinite().all(1)]
        episodes = Seen(len(ended), float(ended[:, RETURN].sum()), float(ended[:, STEPS].sum()))
        phases = [seconds.get(name, 0.0) for name in ("simulate", "infer", "train", "reduce")]
        steps = int(rows[..., STEPS].nan_to_num(0.0, 0.0, 0.0).sum())
        use = Use(self._gmi_id, self._process, iteration, len(directions), steps)
        extra = self._codec.pack([use])
        agreed = self.progress.agree(episodes, phases, self._stop_requested(), extra=extra)
        num_steps = int(pairs[..., STEPS].sum())
        speed = {"steps_per_s": num_steps / sum(phases), "nan_returns": num_lost}
        metrics = speed | agreed.metrics | stats | {"updates": learner.updates}
        experience = self._codec.unpack(agreed.extra)
        return Round(num_steps, metrics, agreed.gmi_seconds, agreed.stop, experience)

    def _gather(self, rows: Tensor) -> Tensor:
        """Returns what came of all directions, in their order: [directions, 2, W]."""
        self._shared.buffer[: rows.numel()].copy_(rows.flatten())
        parts = self._shared.gather()
        width = self._episodes.width
        return torch.cat(
            [
                part[: len(self._share(rank)) * 2 * width].view(-1, 2, width)
                for rank, part in enumerate(parts)
            ]
        )
