"""Computes advantages and targets: GAE (Schulman et al., 2016), V-trace (Espeholt et al., 2018).

T = steps of a segment, N = B = environments. Everything is computed for all environments at once,
in one pass backwards over T.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    done: Tensor,
    last_value: Tensor,
    gamma: float,
    lam: float,
    out: Tensor,
) -> Tensor:
    """Generalised advantage estimation: advantages [T, N], written into `out`.

    reward, value: [T, N]; done: [T, N] float, 1 where the episode ended with that step
    (terminated or truncated); last_value: [N], the value of the observation after step T - 1.
    A truncated step's reward must already hold gamma * V(final observation), the value of the
    future of an episode that was cut and is not over (Pardo et al., 2018).

        delta_t = r_t + gamma (1 - done_t) V_{t+1} - V_t
        A_t     = delta_t + gamma lam (1 - done_t) A_{t+1}
    """
    alive = (1.0 - done).mul_(gamma)
    out[:-1] = value[1:]
    out[-1] = last_value
    out.mul_(alive).add_(reward).sub_(value)  # delta
    alive.mul_(lam)
    for t in range(reward.shape[0] - 2, -1, -1):
        out[t].addcmul_(alive[t], out[t + 1])
    return out


def gae_of_turns(
    reward: Tensor,
    value: Tensor,
    done: Tensor,
    present: Tensor,
    last_value: Tensor,
    gamma: float,
    lam: float,
    out: Tensor,
) -> Tensor:
    """Computes `gae` of agents that act only in the steps where they are `present` [T, N] bool.

    Time is counted in their own steps: rewards between two of these, and the end of an episode
    there, belong to the first of the two. Advantages of other steps are 0.
    """
    next_value, ahead = last_value, torch.zeros_like(last_value)
    paid, ended = torch.zeros_like(ahead), torch.zeros_like(ahead)  # after the step, until the next
    for t in range(len(reward) - 1, -1, -1):
        done_t = done[t]
        paid = reward[t] + paid * (1.0 - done_t)  # later rewards are another episode's
        ended = torch.maximum(ended, done_t)
        alive = gamma * (1.0 - ended)
        advantage = paid + alive * (next_value + lam * ahead) - value[t]
        acts = present[t]
        out[t] = torch.where(acts, advantage, 0.0)
        next_value = torch.where(acts, value[t], next_value)
        ahead = torch.where(acts, advantage, ahead)
        paid, ended = paid.masked_fill(acts, 0.0), ended.masked_fill(acts, 0.0)
    return out


@torch.no_grad()
def vtrace(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace: value targets and advantages [T, B] of policy pi from experience of policy mu.

    The policy gradient is weighted by the advantages, which contain the truncated importance
    weights. No gradient flows through either.

    log_rhos: [T, B], log pi(a | x) - log mu(a | x); discounts: [T, B], gamma, or 0 where the
    episode ended with that step; values: [T, B], V of pi; bootstrap_value: [B], V of the
    observation after step T - 1. New tensors are returned, none of the arguments is written.

    Espeholt et al. 2018, eq. 1 in the recursive form of their remark 1:

        rho_t = min(rho_clip, pi/mu),  c_t = lam min(c_clip, pi/mu)            (lam: remark 2)
        delta_t = rho_t (r_t + gamma_t V_{t+1} - V_t)
        v_t - V_t = delta_t + gamma_t c_t (v_{t+1} - V_{t+1})

    Their policy gradient is weighted by rho_t (r_t + gamma_t v_{t+1} - V_t). With lam < 1 the
    bootstrap here is lam v_{t+1} + (1 - lam) V_{t+1} instead: on-policy, the advantages are then
    those of GAE(lam) and belong to the targets, and lam = 0 is the one-step advantage of both.
    With lam = 1 it is the printed form.
    """
    ratios = log_rhos.exp()
    rhos = ratios.clamp(max=rho_clip)
    traces = ratios.clamp_(max=c_clip).mul_(lam).mul_(discounts)
    next_values = torch.cat([values[1:], bootstrap_value[None]])
    excess = torch.addcmul(rewards, discounts, next_values).sub_(values).mul_(rhos)  # delta
    for t in range(excess.shape[0] - 2, -1, -1):
        excess[t].addcmul_(traces[t], excess[t + 1])  # v_t - V_t
    next_values[:-1].add_(excess[1:], alpha=lam)
    advantages = torch.addcmul(rewards, discounts, next_values).sub_(values).mul_(rhos)
    return excess.add_(values), advantages
