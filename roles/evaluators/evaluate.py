"""Evaluates a policy by whole episodes of its most likely action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from gmi_drl.comm import Group
from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.policy import GreedyActor, Policy
from gmi_drl.roles.samples.batch import env_action

_STEPS_BETWEEN_MEETINGS: Final = 50
_LONGEST: Final = 30_000  # steps; a game of ALE ends after 27,000


def longest_episode(env: VecEnv) -> int:
    """The steps after which an episode of an evaluation is cut: `env`'s own limit, if it has one.

    A greedy policy may do the same for ever where the one that explores does not.
    """
    return _LONGEST if env.max_episode_steps is None else env.max_episode_steps


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
    running = torch.ones(env.num_env, device=env.device)
    ended = torch.zeros(env.num_env, dtype=torch.bool, device=env.device)
    returns = torch.zeros(env.num_env, device=env.device)  # undiscounted
    await_set_up()  # the first reset of environments may compile
    going = [1]
    while any(going):
        stop, steps = stop_requested(), min(_STEPS_BETWEEN_MEETINGS, left)
        for _ in range(0 if stop else steps):
            beat("evaluation")
            left -= 1
            if running.is_cpu and not running.any():
                break
            step = env.step(to_env(actor.act(observation, ended)))
            returns += step.reward * running
            torch.logical_or(step.terminated, step.truncated, out=ended)
            running.masked_fill_(ended, 0.0)
            observation = step.observation
        # A GPU is waited for once in so many steps.
        going = group.exchange(2 if stop else int(left > 0 and bool(running.any())))
        if 2 in going:
            return {}
    paid = returns.double().cpu()
    bucket = group.bucket("evaluation", 4, torch.float64)
    sums = (paid.sum(), paid.square().sum(), len(paid), running.sum())
    bucket.buffer.copy_(torch.tensor(sums, dtype=torch.float64))
    total, squares, count, cut = bucket.reduce("sum").tolist()
    mean = total / count
    spread = max(squares / count - mean * mean, 0.0) ** 0.5
    return {"eval_return": mean, "eval_std": spread, "eval_episodes": count, "eval_cut": cut}
