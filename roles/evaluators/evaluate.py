"""Evaluates a policy by whole episodes: among GMIs, or in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from gmi_drl.roles.envs.agents import AgentGroup, rows_of
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.policy import GreedyActor, Policy, SamplingActor
from gmi_drl.roles.samples.batch import env_action
from gmi_drl.runtime.process.progress import beat

if TYPE_CHECKING:
    from gmi_drl.comm import Group

_STEPS_BETWEEN_MEETINGS: Final = 50
_LONGEST: Final = 30_000  # steps; a game of ALE ends after 27,000


def longest_episode(env: VecEnv) -> int:
    """Returns the steps after which an evaluation cuts an episode: `env`'s limit, if it has one.

    A greedy policy may do the same for ever where the one that explores does not.
    """
    return _LONGEST if env.max_episode_steps is None else env.max_episode_steps


class EpisodeCount:
    """Counts the first `each` episodes of every environment, and no other.

    So short episodes are not favoured, as they are where the first to end are counted. N =
    environments, E = episodes of each. Nothing waits for a device.

    Where rows are agents, who are not always there, those count that they have in the first `each`
    games of their environment, with the steps that they act in.
    """

    def __init__(self, env: VecEnv, each: int) -> None:
        """`env`: the environments, after their `reset`."""
        rows, device = env.num_env, env.device
        self.returns = torch.zeros(rows, each, device=device)  # [N, E], undiscounted
        self.lengths = torch.zeros(rows, each, dtype=torch.int64, device=device)  # [N, E]
        self.ended = torch.zeros(rows, dtype=torch.int64, device=device)  # [N], their number
        # Of agents: which act next, and which had their game begun with the last step.
        self._present: Tensor | None = getattr(env, "present", None)  # [N]
        self._begun: Tensor | None = getattr(env, "begun", None)  # [N]
        self._games = torch.zeros(rows, dtype=torch.int64, device=device)  # [N], that are over
        self._joined = torch.ones(rows, dtype=torch.bool, device=device)  # [N], a game that counts
        if self._present is not None:
            self._joined.copy_(self._present)
        self._acts = self._joined.clone()  # [N], in the step that is added next

    @property
    def running(self) -> Tensor:
        """Tells which environments [N] have episodes left."""
        each = self.returns.shape[1]
        return self._joined & (self.ended < each) & (self._games < each)

    @property
    def counted(self) -> Tensor:
        """Tells which episodes [N, E] count: those that have ended, or still may."""
        each = self.returns.shape[1]
        count = torch.where(self.running, each, self.ended)
        return torch.arange(each, device=count.device) < count[:, None]

    @property
    def begun(self) -> Tensor:
        """Tells which of these episodes have ended, or had a step."""
        places = torch.arange(self.returns.shape[1], device=self.ended.device)
        return self.counted & ((places < self.ended[:, None]) | (self.lengths > 0))

    def add(self, reward: Tensor, ended: Tensor) -> None:
        """Counts a step of all environments, by `reward` [N] and whether episodes `ended` [N]."""
        each = self.returns.shape[1]
        self._joined |= ended & (self._games < each)  # also agents that have never had a turn
        running = self.running
        column = self.ended.clamp(max=each - 1)[:, None]
        counted_reward = torch.where(running, reward, 0).to(self.returns.dtype)
        self.returns.scatter_add_(1, column, counted_reward[:, None])
        self.lengths.scatter_add_(1, column, (running & self._acts).long()[:, None])
        self.ended += ended & running
        if self._present is not None and self._begun is not None:
            self._games += self._begun
            self._joined |= self._present & (self._games < each)
            self._acts.copy_(self._present)


@torch.no_grad()
def play(
    env: VecEnv,
    actor: GreedyActor | SamplingActor,
    each: int = 1,
    seed: int | None = None,
    tell: Callable[[EpisodeCount], None] = lambda episodes: None,
) -> EpisodeCount:
    """Plays `each` episodes in every environment, for `longest_episode` steps each on average.

    `seed` is that of the first environment; None: the one that they were made with. `tell` is
    called every 50 steps with what has been counted.
    """
    for episodes in _rounds(env, actor, each, seed):
        tell(episodes)
    return episodes


def _rounds(
    env: VecEnv, actor: GreedyActor | SamplingActor, each: int = 1, seed: int | None = None
) -> Iterator[EpisodeCount]:
    """Does what `play` does; yields the count after the reset, and every 50 steps while it runs."""
    to_env, device = env_action(env.action_space, env.device), env.device
    ended = torch.ones(env.num_env, dtype=torch.bool, device=device)
    observation = env.reset(seed)
    episodes = EpisodeCount(env, each)
    for number in range(each * longest_episode(env)):
        # A GPU is waited for once in so many steps.
        is_between = number % _STEPS_BETWEEN_MEETINGS == 0
        if (device.type == "cpu" or is_between) and not bool(episodes.running.any()):
            return
        if is_between:
            yield episodes
        beat("evaluation")
        step = env.step(to_env(actor.act(observation, ended)))
        torch.logical_or(step.terminated, step.truncated, out=ended)
        episodes.add(step.reward, ended)
        observation = step.observation


@torch.no_grad()
def evaluate_together(
    env: VecEnv,
    policy: Policy,
    normalizer: RunningNormalizer | None,
    group: Group,
    stop_requested: Callable[[], bool],
    await_set_up: Callable[[], None],
) -> dict[str, float]:
    """Returns mean and deviation of the returns of one episode in each environment of every GMI.

    Every environment counts its first episode only, so that short episodes are not favoured. One
    that has not ended after `longest_episode` steps is cut, and counts with what it has been paid.

    Collective: GMIs meet every few steps, so that none waits long for another, and all give up
    together, with nothing, when one is asked to stop. `await_set_up` returns when all GMIs have
    called it, before the first meeting.
    """
    rounds = _rounds(env, GreedyActor(policy, normalizer))
    episodes = next(rounds)
    await_set_up()  # the first reset of environments may compile
    states = [1]
    while any(states):
        state = 2 if stop_requested() else int(next(rounds, None) is not None)
        states = group.exchange(state)
        if 2 in states:
            return {}
    returns, counted = episodes.returns[:, 0].double().cpu(), episodes.counted[:, 0].cpu()
    returns.masked_fill_(~counted, 0.0)
    groups: Sequence[AgentGroup] = getattr(env, "groups", ())
    policy_rows = rows_of(groups, env.num_env) if len(groups) > 1 else []
    sums = [float(returns.square().sum()), float(episodes.running.sum())]
    for rows in (slice(None), *policy_rows):
        sums += [float(returns[rows].sum()), float(counted[rows].sum())]
    bucket = group.bucket("evaluation", len(sums), torch.float64)
    bucket.buffer.copy_(torch.tensor(sums, dtype=torch.float64))
    squares, cut, total, count, *policy_sums = bucket.reduce("sum").tolist()
    mean = total / count
    spread = max(squares / count - mean * mean, 0.0) ** 0.5
    metrics = {"eval_return": mean, "eval_std": spread, "eval_episodes": count, "eval_cut": cut}
    names = [group.policy for group in groups[: len(policy_rows)]]
    for name, paid, number in zip(names, policy_sums[::2], policy_sums[1::2], strict=True):
        if number:
            metrics[f"{name}/eval_return"] = paid / number
    return metrics
