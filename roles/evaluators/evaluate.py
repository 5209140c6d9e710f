"""Evaluates a policy by whole episodes: among GMIs, or in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """The steps after which an episode of an evaluation is cut: `env`'s own limit, if it has one.

    A greedy policy may do the same for ever where the one that explores does not.
    """
    return _LONGEST if env.max_episode_steps is None else env.max_episode_steps


class EpisodeCount:
    """Counts the first `each` episodes of every environment, and no other.

    So short episodes are not favoured, as they are where the first to end are counted. N =
    environments, E = episodes of each. Nothing waits for a device.
    """

    def __init__(self, num_env: int, each: int, device: torch.device) -> None:
        self.returns = torch.zeros(num_env, each, device=device)  # [N, E], undiscounted
        self.lengths = torch.zeros(num_env, each, dtype=torch.int64, device=device)  # [N, E]
        self.ended = torch.zeros(num_env, dtype=torch.int64, device=device)  # [N], those that have

    @property
    def running(self) -> Tensor:
        """Tells which environments [N] have episodes left."""
        return self.ended < self.returns.shape[1]

    def add(self, reward: Tensor, ended: Tensor) -> None:
        """Counts a step of all environments, by `reward` [N] and whether episodes `ended` [N]."""
        running = self.running
        place = self.ended.clamp(max=self.returns.shape[1] - 1)[:, None]
        paid = torch.where(running, reward, 0).to(self.returns.dtype)
        self.returns.scatter_add_(1, place, paid[:, None])
        self.lengths.scatter_add_(1, place, running.long()[:, None])
        self.ended += ended & running


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
    to_env, device = env_action(env.action_space, env.device), env.device
    episodes = EpisodeCount(env.num_env, each, device)
    ended = torch.ones(env.num_env, dtype=torch.bool, device=device)
    observation = env.reset(seed)
    for number in range(each * longest_episode(env)):
        # A GPU is waited for once in so many steps.
        now_and_then = number % _STEPS_BETWEEN_MEETINGS == 0
        if (device.type == "cpu" or now_and_then) and not bool(episodes.running.any()):
            break
        if now_and_then:
            tell(episodes)
        step = env.step(to_env(actor.act(observation, ended)))
        torch.logical_or(step.terminated, step.truncated, out=ended)
        episodes.add(step.reward, ended)
        observation = step.observation
    return episodes


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
    actor, to_env = GreedyActor(policy, normalizer), env_action(env.action_space, env.device)
    observation, left = env.reset(), longest_episode(env)
    episodes = EpisodeCount(env.num_env, 1, env.device)
    ended = torch.zeros(env.num_env, dtype=torch.bool, device=env.device)
    await_set_up()  # the first reset of environments may compile
    going = [1]
    while any(going):
        stop, steps = stop_requested(), min(_STEPS_BETWEEN_MEETINGS, left)
        for _ in range(0 if stop else steps):
            beat("evaluation")
            left -= 1
            if ended.is_cpu and not episodes.running.any():
                break
            step = env.step(to_env(actor.act(observation, ended)))
            torch.logical_or(step.terminated, step.truncated, out=ended)
            episodes.add(step.reward, ended)
            observation = step.observation
        # A GPU is waited for once in so many steps.
        going = group.exchange(2 if stop else int(left > 0 and bool(episodes.running.any())))
        if 2 in going:
            return {}
    paid = episodes.returns[:, 0].double().cpu()
    its = means_of_policies(env, paid)  # of as many episodes in each GMI
    bucket = group.bucket("evaluation", 4 + len(its), torch.float64)
    cut = episodes.running.sum()
    sums = (paid.sum(), paid.square().sum(), len(paid), cut, *its.values())
    bucket.buffer.copy_(torch.tensor(sums, dtype=torch.float64))
    total, squares, count, cut, *means = bucket.reduce("sum").tolist()
    mean = total / count
    spread = max(squares / count - mean * mean, 0.0) ** 0.5
    told = {"eval_return": mean, "eval_std": spread, "eval_episodes": count, "eval_cut": cut}
    of_policies = zip(its, means, strict=True)
    return told | {f"{name}/eval_return": mean / group.size for name, mean in of_policies}


def means_of_policies(env: VecEnv, returns: Tensor) -> dict[str, float]:
    """Returns the means of `returns` [N, ...] of the agents of each policy, if there are several.

    Those of agents that there are, at least once in an episode; nothing is paid to others.
    """
    groups: Sequence[AgentGroup] = getattr(env, "groups", ())
    if len(groups) < 2:
        return {}
    rows = rows_of(groups, env.num_env)
    return {
        group.policy: float(returns[place].mean())
        for group, place in zip(groups, rows, strict=True)
    }
