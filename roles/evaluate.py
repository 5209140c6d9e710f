"""How good a policy is: whole episodes of its most likely action."""

from __future__ import annotations

import torch
from torch import Tensor

from gmi_drl.comm import Group

from .envs.protocol import VecEnv
from .normalize import RunningNormalizer
from .policy import ActorCritic
from .rollout import env_action


@torch.no_grad()
def evaluate(env: VecEnv, policy: ActorCritic, normalizer: RunningNormalizer | None) -> Tensor:
    """The undiscounted return of one episode in each environment of `env`, [num_env].

    Every environment counts its first episode only, so that short episodes are not favoured.
    """
    observation = env.reset()
    returns = torch.zeros(env.num_env, device=env.device)
    running = torch.ones(env.num_env, device=env.device)
    to_env = env_action(env.action_space, env.device)
    while bool(running.any()):
        if normalizer is not None:
            observation = normalizer.normalize(observation)
        action = policy.distribution.mode(policy(observation)[:, :-1])
        step = env.step(to_env(action))
        returns += step.reward * running
        running[step.terminated | step.truncated] = 0.0
        observation = step.observation
    return returns


def evaluate_together(
    env: VecEnv, policy: ActorCritic, normalizer: RunningNormalizer | None, group: Group
) -> dict[str, float]:
    """Mean and deviation of the returns of the episodes of all GMIs; collective."""
    returns = evaluate(env, policy, normalizer).double()
    bucket = group.bucket("evaluation", 3, torch.float64)
    bucket.buffer.copy_(
        torch.stack([returns.sum(), returns.square().sum(), torch.tensor(len(returns)).double()])
    )
    total, squares, count = bucket.reduce("sum").tolist()
    mean = total / count
    spread = max(squares / count - mean * mean, 0.0) ** 0.5
    return {"eval_return": mean, "eval_std": spread, "eval_episodes": count}
