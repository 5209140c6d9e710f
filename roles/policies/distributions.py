"""Action distributions, written out for the hot path: Normal for Box, Categorical for Discrete.

Both read the *parameters* a policy head gives (means, or logits), so that a whole batch is
evaluated in a few tensor operations. `tests/roles/test_distributions.py` holds them to
`torch.distributions`.

Shapes: B rows; A = action dimensions (Box) or number of choices (Discrete).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG_2PI = math.log(2.0 * math.pi)


class Normal:
    """Diagonal Gaussian with a log-std that does not depend on the state."""

    def __init__(self, action_dim: int) -> None:
        self.parameters = action_dim  # head outputs per row
        self.action_columns = action_dim  # columns an action takes in the rollout buffer
        self.noise_columns = action_dim  # random columns one sample consumes

    def noise(
        self, shape: tuple[int, ...], log_std: Tensor, generator: torch.Generator, out: Tensor
    ) -> Tensor:
        """Fill `out` [*shape, noise_columns] with what `sample` consumes: a rollout's at once."""
        torch.randn((*shape, self.noise_columns), generator=generator, out=out)
        return out.mul_(log_std.exp())

    def sample(self, params: Tensor, noise: Tensor, out: Tensor) -> Tensor:
        """Write one action a row into `out` [B, action_columns]."""
        return torch.add(params, noise, out=out)

    def mode(self, params: Tensor) -> Tensor:
        """The most likely action of each row, [B, action_columns]."""
        return params

    def log_prob(self, params: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        """Log-probability of `action`, [B]."""
        z = (action - params) * (-log_std).exp()
        constant = log_std.sum() + 0.5 * _LOG_2PI * self.parameters
        return z.square().sum(-1) * -0.5 - constant

    def entropy(self, params: Tensor, log_std: Tensor) -> Tensor:
        """Mean entropy over the rows, a scalar."""
        return log_std.sum() + 0.5 * (1.0 + _LOG_2PI) * self.parameters

    def kl(self, old: Tensor, old_log_std: Tensor, new: Tensor, new_log_std: Tensor) -> Tensor:
        """Mean KL(old || new) over the rows, a scalar."""
        precision = (-2.0 * new_log_std).exp()
        spread = (2.0 * old_log_std).exp() + (old - new).square().mean(0)
        return (new_log_std - old_log_std + 0.5 * (spread * precision - 1.0)).sum()


class Categorical:
    """One of `choices` actions, from unnormalised logits; its methods do what `Normal`'s do."""

    action_columns = 1

    def __init__(self, choices: int) -> None:
        self.parameters = self.noise_columns = choices

    def noise(
        self, shape: tuple[int, ...], log_std: Tensor, generator: torch.Generator, out: Tensor
    ) -> Tensor:
        # Gumbel-max: argmax(logits + g) is a sample of the softmax; the noise of a whole
        # rollout is drawn at once.
        uniform = torch.rand((*shape, self.noise_columns), generator=generator, out=out)
        return uniform.clamp_(1e-10, 1.0 - 1e-7).log_().neg_().log_().neg_()

    def sample(self, params: Tensor, noise: Tensor, out: Tensor) -> Tensor:
        return out.copy_((params + noise).argmax(-1, keepdim=True))

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1, keepdim=True)

    def log_prob(self, params: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        return params.log_softmax(-1).gather(-1, action.long()).squeeze(-1)

    def entropy(self, params: Tensor, log_std: Tensor) -> Tensor:
        log_p = params.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1).mean()

    def kl(self, old: Tensor, old_log_std: Tensor, new: Tensor, new_log_std: Tensor) -> Tensor:
        log_old = old.log_softmax(-1)
        return (log_old.exp() * (log_old - new.log_softmax(-1))).sum(-1).mean()


Distribution = Normal | Categorical  # the part of a policy that an action space decides


def beyond_bounds(means: Tensor) -> Tensor:
    """Mean square of what action means [..., A] are beyond 1.1 times the bounds, a scalar.

    The environment clamps there: without a push back, means wander off.
    """
    return (means.abs() - 1.1).clamp_min(0.0).square().sum(-1).mean()
