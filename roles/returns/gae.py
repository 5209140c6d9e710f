"""Generalised advantage estimation (Schulman et al., 2016)."""

from __future__ import annotations

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
    """Advantages [T, N] of T steps in N environments, written into `out`.

    reward, value: [T, N]; done: [T, N] float, 1 where the episode ended with that step
    (terminated or truncated); last_value: [N], the value of the observation after step T - 1.
    A truncated step's reward must already hold gamma * V(final observation): the episode was
    cut, not finished, and its future is worth that much (Pardo et al., 2018).

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
