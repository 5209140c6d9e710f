"""Learns by playing against snapshots of the policy, which it is rated against.

In each environment the policy acts for one agent, and learns from that agent's rows; snapshots act
for the others. A game is over when all agents in it have left, and the agent with the greatest sum
of rewards wins it. Ratings are Elo's: 400 points more mean ten wins for each loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.placement import SelfPlayConfig
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.policies.actor_critic import ActorCriticPolicy
from gmi_drl.roles.policies.league import LeaguePolicy
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses, checked

_PER_ROUND: Final = 32.0  # points, at most, that a rating changes by in a round


def against_itself(algorithm: Algorithm, env: VecEnv, league: SelfPlayConfig) -> SelfPlay:
    """Returns the algorithm that trains the policy of `algorithm` by self-play.

    EnvSpecError for an environment of one agent, RoleError for an algorithm that takes no rows.
    """
    agents = len(getattr(env, "agents", ()))
    if faults := league_faults(league, agents):
        raise EnvSpecError(*faults)
    if algorithm.whole_segments or type(algorithm.policy) is not ActorCriticPolicy:
        raise RoleError(
            f"multi_agent.self_play: {type(algorithm).__name__} learns from no rows of an actor "
            "and critic, of which those that snapshots acted in are left out. Leave self_play "
            "out, or derive it from gmi_drl.roles.algorithms.ppo.PPO."
        )
    return SelfPlay(algorithm, agents, league)


def league_faults(league: SelfPlayConfig, agents: int, num_env: int | None = None) -> list[str]:
    """Returns why a policy of so many agents cannot play against all of `league`.

    `num_env`: the environments of a GMI; None: it is not looked at.
    """
    if agents < 2:
        return [
            f"multi_agent.self_play: the environment has {agents or 1} agent; a policy plays "
            "against itself where there are two or more. Leave it out."
        ]
    if num_env is not None and num_env < (least := agents * league.snapshots):
        return [
            f"multi_agent.self_play.snapshots={league.snapshots}; env.num_env={num_env} must be at "
            f"least {least}, so that each snapshot plays against the policy in each of {agents} "
            f"seats. Use env.num_env: {least}, or fewer snapshots."
        ]
    return []


class SelfPlay(Algorithm):
    """Is an algorithm of rows whose policy plays against its snapshots."""

    policy: LeaguePolicy

    def __init__(self, algorithm: Algorithm, agents: int, league: SelfPlayConfig) -> None:
        """`agents`: of each environment, who share the policy of `algorithm`."""
        normalizers = algorithm.normalizers
        policy: Any = algorithm.policy
        algorithm.policy = LeaguePolicy(policy, normalizers.observations, agents, league.snapshots)
        super().__init__(algorithm.settings, algorithm.policy, normalizers)
        self._algorithm, self._snapshot_every = algorithm, league.every
        self.stats = (*algorithm.stats, "rating", "score")
        self.filled, self.bootstrap = algorithm.filled, algorithm.bootstrap  # type: ignore[misc]
        self.recorded = (*algorithm.recorded, "paid")  # type: ignore[misc]
        self.changes_parameters = algorithm.changes_parameters  # type: ignore[misc]
        self.capturable = algorithm.capturable  # type: ignore[misc]
        self._num_own = algorithm.num_batch_moments
        self.num_batch_moments = self._num_own + 2 * league.snapshots  # type: ignore[misc]
        device = next(policy.network.parameters()).device
        self._rounds = self._taken = 0
        self._rating = torch.zeros((), dtype=torch.float64, device=device)
        self._ratings = torch.zeros(league.snapshots, dtype=torch.float64, device=device)
        self._score = torch.full((), 0.5, device=device)
        # Of each row [A, E] in its game: the sum of rewards, whether the agent has left, and if it
        # was ever present. They belong to this GMI's environments, and go on with them.
        self._paid = self._left = self._joined = torch.zeros(0, device=device)

    @property
    def learning_rates(self) -> Mapping[str, float]:
        return self._algorithm.learning_rates

    def losses(self, batch: Batch) -> Losses:
        losses = checked(self._algorithm, self._algorithm.losses(batch))
        league_stats = {"rating": self._rating.float(), "score": self._score}
        return Losses(losses.total, {**losses.stats, **league_stats}, losses.extras, losses.groups)

    def measure(self, batch: Batch, out: Tensor) -> None:
        """Writes the algorithm's moments, then games and scores against each snapshot."""
        rows, device = batch["reward"].shape[1], batch["reward"].device
        games, scores = self._finished_games(batch)
        batch["present"].logical_and_(self.policy.learns(rows, device))
        self._algorithm.measure(batch, out[: self._num_own])
        opponent = self.policy.opponent(rows, device)
        tally = out[self._num_own :].view(2, -1).zero_()
        tally[0].index_add_(0, opponent, games)
        tally[1].index_add_(0, opponent, scores)

    def _finished_games(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the games that ended in each environment [E], and what the policy scored."""
        agents, device = self.policy.agents, batch["reward"].device
        # Not the rewards, in which there is the value of the state that an episode was cut at.
        reward, ended, acted = (
            batch[name].view(len(batch["reward"]), agents, -1)
            for name in ("paid", "done", "present")
        )
        steps, _, environments = reward.shape
        self._allocate_records(batch)
        tally = torch.zeros(2, environments, dtype=torch.float64, device=device)
        for t in range(steps):
            # An agent that has left acts again: the game before is over, whoever never came to it.
            self._count((self._left * acted[t]).amax(0) > 0, tally)
            self._paid += reward[t]
            torch.maximum(self._left, ended[t], out=self._left)
            torch.maximum(self._joined, torch.maximum(acted[t], ended[t]), out=self._joined)
            self._count(self._left.amin(0) > 0, tally)
        return tally[0], tally[1]

    def _allocate_records(self, batch: Batch) -> None:
        """Allocates the records of each row's game, unless there are some for as many rows."""
        reward, agents = batch["reward"], self.policy.agents
        if self._paid.numel() != reward.shape[1]:
            records = torch.zeros(3, agents, reward.shape[1] // agents, device=reward.device)
            self._paid, self._left, self._joined = records

    def _count(self, over: Tensor, tally: Tensor) -> None:
        """Adds the games that are `over` [E], and the policy's scores, to `tally` [2, E].

        Games in which the policy was absent, or alone, do not count.
        """
        is_own = self.policy.learns(self._paid.numel(), over.device).view_as(self._paid)
        own_pay = self._paid.masked_fill(~is_own, 0.0).sum(0)
        best_other = self._paid.masked_fill(is_own | (self._joined == 0), -torch.inf).amax(0)
        counts = over & (self._joined * is_own).any(0) & best_other.isfinite()
        tally[0] += counts
        tally[1] += counts * ((own_pay > best_other) + 0.5 * (own_pay == best_other))
        for record in (self._paid, self._left, self._joined):
            record.masked_fill_(over, 0.0)

    def learn_batch_moments(self, moments: Tensor) -> None:
        self._algorithm.learn_batch_moments(moments[:, : self._num_own])
        games, scores = moments[:, self._num_own :].sum(0).view(2, -1)
        count = games.sum()
        expected = games / (1.0 + 10.0 ** ((self._ratings - self._rating) / 400.0))
        share = count.clamp(min=1.0)
        self._rating += _PER_ROUND * (scores - expected).sum() / share
        self._score.copy_(torch.where(count > 0, scores.sum() / share, self._score))

    def postprocess(self, batch: Batch, moments: Tensor) -> None:
        self._algorithm.postprocess(batch, moments[:, : self._num_own])

    def changed(self, batch: Batch) -> list[Tensor]:
        self._allocate_records(batch)
        kept = [self._rating, self._score, self._paid, self._left, self._joined]
        own_tensors = [*kept, batch["present"]]
        return [*self._algorithm.changed(batch), *own_tensors]

    def explore_as(self, numbers: range, total: int) -> None:
        self._algorithm.explore_as(numbers, total)

    def before_sampling(self, steps: int) -> None:
        """Replaces the oldest snapshot by the policy, once in `league.every` rounds."""
        if self._rounds and self._rounds % self._snapshot_every == 0:
            index = self._taken % len(self.policy.snapshots)
            self.policy.snapshots[index].take(self.policy.network, self.normalizers.observations)
            self._ratings[index] = self._rating
            self._taken += 1
        self._rounds += 1
        self._algorithm.before_sampling(steps)

    def after_step(self, updates: int) -> None:
        self._algorithm.after_step(updates)

    def state_dict(self) -> dict[str, Any]:
        return {
            "algorithm": self._algorithm.state_dict(),
            "rounds": self._rounds,
            "taken": self._taken,
            "rating": self._rating,
            "score": self._score,
            "ratings": self._ratings,
            "snapshots": [snapshot.state_dict() for snapshot in self.policy.snapshots],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._algorithm.load_state_dict(state["algorithm"])
        self._rounds, self._taken = state["rounds"], state["taken"]
        self._rating.copy_(state["rating"])
        self._score.copy_(state.get("score", self._score))  # checkpoints of before have none
        self._ratings.copy_(state["ratings"])
        snapshots: Sequence[Any] = state["snapshots"]
        for snapshot, snapshot_state in zip(self.policy.snapshots, snapshots, strict=True):
            snapshot.load_state_dict(snapshot_state)
