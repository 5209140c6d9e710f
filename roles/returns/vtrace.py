"""V-trace: value targets and advantages from experience of an older policy (Espeholt et al., 2018).

T = steps of a segment, B = environments. Everything is computed for all B at once, in one pass
backwards over T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class VTrace:
    """The targets of a segment; no gradient flows through any of them."""

    vs: Tensor  # [T, B] value targets
    pg_advantages: Tensor  # [T, B] what the gradient of log pi(a | x) is weighted by
    rhos: Tensor  # [T, B] truncated importance weights; already a factor of pg_advantages


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
) -> VTrace:
    """Targets and advantages of the policy pi from experience of the policy mu.

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
    following = torch.cat([values[1:], bootstrap_value[None]])
    excess = torch.addcmul(rewards, discounts, following).sub_(values).mul_(rhos)  # delta
    for t in range(excess.shape[0] - 2, -1, -1):
        excess[t].addcmul_(traces[t], excess[t + 1])  # v_t - V_t
    following[:-1].add_(excess[1:], alpha=lam)
    advantages = torch.addcmul(rewards, discounts, following).sub_(values).mul_(rhos)
    return VTrace(excess.add_(values), advantages, rhos)
