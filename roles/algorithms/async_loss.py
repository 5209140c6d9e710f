"""The losses of asynchronous training: IMPALA, which corrects for old experience, and A3C.

Both are an actor-critic loss; they differ in the targets and the weights of the policy gradient.
Values are in the value normaliser's units inside the network, and so are advantages in the loss
(Hessel et al., 2019, "PopArt" in IMPALA): the scale of the rewards does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.policies.distributions import beyond_bounds
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.policy import ActorCritic
from gmi_drl.roles.returns.gae import gae
from gmi_drl.roles.returns.vtrace import vtrace
from gmi_drl.roles.samples.segments import Batch


@dataclass(frozen=True)
class AsyncLossParts:
    """The parts of one minibatch's loss, scalars; `total` is what is differentiated."""

    total: Tensor
    kl: Tensor  # estimate of KL(behaviour || policy): how old the experience is
    rho: Tensor  # mean of min(1, policy / behaviour): 1 is on-policy
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    bounds_loss: Tensor
    targets: Tensor  # [T, B] of the value function, in the rewards' units


# Loss of a minibatch of whole segments, with the value normaliser, if there is one.
AsyncLoss = Callable[
    [ActorCritic, Batch, RunningNormalizer | None, AlgorithmConfig], AsyncLossParts
]


@dataclass(frozen=True)
class _Evaluation:
    """The present policy on a batch."""

    params: Tensor  # [T, B, P]
    value: Tensor  # [T, B] as the network gives it: in the normaliser's units
    log_prob: Tensor  # [T, B] of the actions taken
    log_rho: Tensor  # [T, B] policy / behaviour, without a gradient
    worth: Tensor  # [T + 1, B] value in the rewards' units, without a gradient


def _evaluate(policy: ActorCritic, batch: Batch, values: RunningNormalizer | None) -> _Evaluation:
    head = policy(batch.observations)
    params, value = head[:-1, :, :-1], head[..., -1]
    log_prob = policy.distribution.log_prob(params, policy.log_std, batch.action)
    worth = value.detach()
    if values is not None:
        worth = values.denormalize(worth)
    log_rho = log_prob.detach() - batch.log_prob
    return _Evaluation(params, value[:-1], log_prob, log_rho, worth)


def impala_loss(
    policy: ActorCritic,
    batch: Batch,
    values: RunningNormalizer | None,
    settings: AlgorithmConfig,
) -> AsyncLossParts:
    """V-trace actor-critic (Espeholt et al., 2018, section 4.2); means instead of their sums."""
    now = _evaluate(policy, batch, values)
    found = vtrace(
        now.log_rho,
        settings.gamma * (1.0 - batch.done),
        batch.reward,
        now.worth[:-1],
        now.worth[-1],
        settings.rho_clip,
        settings.c_clip,
        settings.lam,
    )
    return _actor_critic(policy, now, found.pg_advantages, found.vs, values, settings)


def a3c_loss(
    policy: ActorCritic,
    batch: Batch,
    values: RunningNormalizer | None,
    settings: AlgorithmConfig,
) -> AsyncLossParts:
    """Advantage actor-critic (Mnih et al., 2016): experience is taken as the policy's own.

    With lam = 1 the targets are the n-step returns of the segment, as in the paper; below, GAE's.
    """
    now = _evaluate(policy, batch, values)
    advantage = gae(
        batch.reward,
        now.worth[:-1],
        batch.done,
        now.worth[-1],
        settings.gamma,
        settings.lam,
        torch.empty_like(batch.reward),
    )
    targets = advantage + now.worth[:-1]
    return _actor_critic(policy, now, advantage, targets, values, settings)


def _actor_critic(
    policy: ActorCritic,
    now: _Evaluation,
    advantage: Tensor,
    targets: Tensor,
    values: RunningNormalizer | None,
    settings: AlgorithmConfig,
) -> AsyncLossParts:
    wanted = targets
    if values is not None:
        advantage = advantage * values.inv_std
        wanted = values.normalize(targets)
    policy_loss = -(advantage * now.log_prob).mean()
    value_loss = 0.5 * (now.value - wanted).square().mean()
    total = policy_loss + settings.value_coef * value_loss
    entropy = policy.distribution.entropy(now.params, policy.log_std)
    if settings.entropy_coef:
        total = total - settings.entropy_coef * entropy
    bounds_loss = value_loss.new_zeros(())
    if settings.bounds_coef and policy.log_std.numel():
        bounds_loss = beyond_bounds(now.params)
        total = total + settings.bounds_coef * bounds_loss
    kl = -now.log_rho.mean()
    rho = now.log_rho.clamp(max=0.0).exp().mean()
    return AsyncLossParts(total, kl, rho, policy_loss, value_loss, entropy, bounds_loss, targets)


LOSSES: Final[dict[str, AsyncLoss]] = {"impala": impala_loss, "a3c": a3c_loss}
