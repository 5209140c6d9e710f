"""Evaluates a policy by whole episodes of its most likely action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from gmi_drl.comm import Group
from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.policies.actor import GreedyActor
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.policy import Policy
from gmi_drl.roles.samples.batch import env_action

_STEPS_BETWEEN_MEETINGS: Final = 50
_LONGEST: Final = 30_000  # steps; a game of ALE ends after 27,000


def longest_episode(env: VecEnv) -> int:
    """The steps after which an episode of an evaluation is cut: `env`'s own limit, if it has one.

    A greedy policy may do the same for ever where the one that explores does not.
    """
    return _LONGEST if env.max_episode_steps is None else env.max_episode_steps


class Evaluation:
    """One episode of the most likely action in each environment of `env`.

    Every environment counts its first episode only, so that short episodes are not favoured. One
    that does not end is cut, and counts with what it has been paid by then.
    """

    def __init__(self, env: VecEnv, policy: Policy, normalizer: RunningNormalizer | None) -> None:
        self._env, self._actor = env, GreedyActor(policy, normalizer)
        self._to_env = env_action(env.action_space, env.device)
        self._observation = env.reset()
        self._left = longest_episode(env)
        self._running = torch.ones(env.num_env, device=env.device)
        self.returns = torch.zeros(env.num_env, device=env.device)  # undiscounted, [num_env]

    @torch.no_grad()
    def advance(self, steps: int) -> bool:
        """Takes up to `steps` steps, and returns whether an episode goes on; waits for a GPU once.

        Episodes that have not ended after `longest_episode` steps are cut: see `cut`.
        """
        on_host = self._running.is_cpu
        for _ in range(min(steps, self._left)):
            beat("evaluation")
            self._left -= 1
            if on_host and not self._running.any():
                return False
            step = self._env.step(self._to_env(self._actor.act(self._observation)))
            self.returns += step.reward * self._running
            self._running.masked_fill_(step.terminated | step.truncated, 0.0)
            self._observation = step.observation
        return self._left > 0 and bool(self._running.any())

    @property
    def cut(self) -> int:
        """The number of episodes that had not ended when it was over."""
        return int(self._running.sum())


def evaluate_together(
    env: VecEnv,
    policy: Policy,
    normalizer: RunningNormalizer | None,
    group: Group,
    stop_requested: Callable[[], bool],
    await_set_up: Callable[[], None],
) -> dict[str, float]:
    """Returns mean and deviation of the returns of one episode in each environment of every GMI.

    Collective: GMIs meet every few steps, so that none waits long for another, and all give up
    together, with nothing, when one is asked to stop. `await_set_up` returns when all GMIs have
    called it, before the first meeting.
    """
    evaluation = Evaluation(env, policy, normalizer)
    await_set_up()  # the first reset of environments may compile
    going = [1]
    while any(going):
        state = 2 if stop_requested() else int(evaluation.advance(_STEPS_BETWEEN_MEETINGS))
        going = group.exchange(state)
        if 2 in going:
            return {}
    returns = evaluation.returns.double().cpu()
    bucket = group.bucket("evaluation", 4, torch.float64)
    bucket.buffer[0] = returns.sum()
    bucket.buffer[1] = returns.square().sum()
    bucket.buffer[2] = len(returns)
    bucket.buffer[3] = evaluation.cut
    total, squares, count, cut = bucket.reduce("sum").tolist()
    mean = total / count
    spread = max(squares / count - mean * mean, 0.0) ** 0.5
    return {"eval_return": mean, "eval_std": spread, "eval_episodes": count, "eval_cut": cut}
