"""Synchronous training on kept experience: each GMI has a replay of its own, gradients are reduced.

In each round every GMI's evaluators sample into its replay, and all GMIs take the steps that are
due, which they count alike. A GMI that is restarted begins with an empty storage, and draws from
what it has by then. If all begin so, all wait until their replays are filled as at the start.

Where a model is trained on what is kept, all GMIs do so in the same round. They meet after each
part of that work: one whose model takes longer is waited for part by part, however long it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from gmi_drl.comm import Group, solo_group
from gmi_drl.roles.envs.protocol import Stacking, VecEnv
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.hindsight import Hindsight
from gmi_drl.roles.samples.replay import ReplayBuffer
from gmi_drl.roles.seeds import GOALS
from gmi_drl.roles.telemetry.experience import Kept
from gmi_drl.runtime.process.progress import beat

from .learner import Learner
from .sync_rounds import Sampling, SyncRounds

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole

_OVER: Final = object()


def make(role: ActingRole) -> SyncRounds:
    """Make the optimizer of a role, over its own environments or the workers it is joined with."""
    sampling = Sampling.of(role)
    pool, capturable = role.pool(role.mgr.context.device), role.loss_is_capturable()
    learner = Learner(role.algorithm, sampling.generator, pool=pool, capture_loss=capturable)
    replay = on_replay(learner, sampling.batch, role.stacking, partial(goals_env, role))
    return SyncRounds(role.mgr, sampling.evaluators(learner), learner, sampling.generator, replay)


def goals_env(role: ActingRole) -> VecEnv:
    """Makes a role's environment that computes the rewards of other goals."""
    env = role.make_env(1, seed=GOALS)
    role.mgr.close_later(env.close)
    return env


def on_replay(
    learner: Learner,
    batch: Batch,
    stacking: Stacking | None,
    make_env: Callable[[], VecEnv],
    *,
    in_turn: bool = True,
) -> OnReplay:
    """Makes the replay of a learner's algorithm, of batches such as `batch`, and trains on it.

    `stacking`: of observations that are stacks of frames. `make_env` is called with hindsight
    alone: the environment says what goals are worth. `in_turn`: batches are of the same
    environments, each from where the one before ended; else sequences do not go on from each other.
    """
    algorithm = learner.algorithm
    settings = algorithm.settings
    if algorithm.num_batch_moments:
        raise RoleError(
            f"{type(algorithm).__name__}: num_batch_moments={algorithm.num_batch_moments}; under "
            f"{settings.resolved_optimizer} GMIs share no moments of their batches. Leave them "
            "out, or use all_reduce."
        )
    hindsight: Hindsight | None = None
    if settings.hindsight:
        scale = settings.reward_scale
        hindsight = Hindsight(make_env(), settings.hindsight, scale, learner.generator)
        stacking = None  # it changes goals within observations and next observations
    replay = ReplayBuffer.of(
        settings, batch, algorithm.replayed, learner.generator, stacking, in_turn=in_turn
    )
    return OnReplay(learner, algorithm.source(replay, learner.generator), hindsight)


class OnReplay:
    """Puts each batch, postprocessed, into a replay, and trains on what is drawn from it."""

    def __init__(
        self, learner: Learner, replay: ReplayBuffer, hindsight: Hindsight | None = None
    ) -> None:
        self.learner, self._replay, self._hindsight = learner, replay, hindsight
        self._saves: bool = learner.algorithm.settings.replay_save
        self._normalizer = learner.algorithm.normalizers.observations
        self._group = solo_group()  # until `connect`
        self._rows = self._drawn = 0  # put in and drawn by the last update
        # How many rows a round has put in: the last version before, the rows that were put in by
        # then, and the rows of each round since. Resizing a run adds an entry.
        self._paces: list[tuple[int, int, int]] = []
        self._no_moments = torch.zeros(1, 0, dtype=torch.float64)  # nothing is measured of a batch

    def connect(self, group: Group) -> None:
        """Agree with the other GMIs on whether all replays begin anew; collective."""
        limiter = self._replay.limiter
        self._group = group
        if not any(group.exchange(len(self._replay))) and limiter.rows:
            limiter.begin_anew()

    def anneal(self, progress: float) -> None:
        """Take note of `progress`, the share of all steps that is done: 0 to 1."""
        self._replay.anneal(progress)

    def update(self, batch: Batch) -> None:
        learner, replay = self.learner, self._replay
        learner.clock.begin("train")
        if (present := batch.columns.get("present")) is not None and not bool(present.all()):
            raise RoleError(
                "an agent has left while others go on, or they take turns; agents whose steps are "
                "kept must come and go together. Use algorithm.name: ppo."
            )
        learner.observe(batch)
        if self._hindsight is not None:
            self._hindsight.relabel(batch)
        learner.algorithm.postprocess(batch, self._no_moments)
        drawn_before, self._rows = replay.limiter.drawn, batch["reward"].numel()
        replay.put(batch)
        if replay.fits_model and replay.ready():
            self._fit_models()
        learner.noise.begin(replay.batch_size)
        while replay.ready():
            drawn, keys = replay.next()
            if self._hindsight is not None:
                self._hindsight.carry(drawn)
            minibatch = drawn.transitions(self._normalizer)
            learner.algorithm.draw_noise(minibatch, learner.generator)
            extras = learner.repeat(minibatch)
            replay.feedback(keys, extras.get("priorities"))
        self._drawn = replay.limiter.drawn - drawn_before
        learner.clock.stop()

    def _fit_models(self) -> None:
        """Trains the models of all GMIs if that of one is due; collective."""
        group, replay = self._group, self._replay
        if not any(group.exchange(int(replay.model_is_due()))):
            return
        parts = replay.fit_model()
        while any(group.exchange(int(next(parts, _OVER) is not _OVER))):
            beat("update")

    def kept(self, iteration: int) -> Kept:
        """Describes the replay after the update of `iteration`, which was not described before."""
        rows, rows_each, total = len(self._replay), self._rows, self._replay.limiter.rows
        if not self._paces or self._paces[-1][2] != rows_each:
            self._paces.append((iteration - 1, total - rows_each, rows_each))
        oldest_row = total - rows  # its number
        paces = [pace for pace in self._paces if pace[1] <= oldest_row] or self._paces[:1]
        version, first_row, rows_each = paces[-1]
        return Kept(rows, version + 1 + (oldest_row - first_row) // rows_each, self._drawn)

    def check(self) -> None:
        """Raises PriorityError where a loss gave an invalid priority; waits for the device."""
        self._replay.check()

    def metrics(self) -> dict[str, Any]:
        return {"updates": self.learner.updates} | self._replay.metrics()

    def state_dict(self) -> dict[str, Any]:
        return {"limiter": self._replay.limiter.state_dict(), "paces": self._paces.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        limiter = self._replay.limiter
        # Rows of rounds that were given up: they are collected again.
        self._replay.take_back(max(limiter.rows - state["limiter"]["rows"], 0))
        limiter.load_state_dict(state["limiter"])
        self._paces = [(version, rows, rows_each) for version, rows, rows_each in state["paces"]]

    def own_state(self) -> dict[str, Any]:
        return {"replay": self._replay.state_dict()} if self._saves else {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        if self._saves and "replay" in state:
            self._replay.load_state_dict(state["replay"])
