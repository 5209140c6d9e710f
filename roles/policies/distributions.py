"""Action distributions, written out for the hot path: Normal for Box, Categorical for Discrete.

Bernoulli is for MultiBinary, and Joint for spaces of several parts. All read the *parameters* a
policy head gives (means, or logits), so that a whole batch is evaluated in a few tensor operations.
`tests/roles/test_distributions.py` holds them to `torch.distributions`.

Shapes: B rows; A = action dimensions (Box) or number of choices (Discrete). `deviations` counts
the numbers of `log_std` that a distribution has; `bounded` tells whether it has means that are to
stay in [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

_LOG_2PI = math.log(2.0 * math.pi)


class Normal:
    """Diagonal Gaussian with a log-std that does not depend on the state."""

    def __init__(self, action_dim: int, *, bounded: bool = True) -> None:
        """`bounded`: whether the environment clamps actions to [-1, 1]."""
        self.bounded = bounded
        self.parameters = self.deviations = action_dim  # head outputs per row
        self.action_columns = action_dim  # columns an action takes in the rollout buffer
        self.noise_columns = action_dim  # random columns one sample consumes

    def noise(
        self, shape: tuple[int, ...], log_std: Tensor, generator: torch.Generator, out: Tensor
    ) -> Tensor:
        """Fills `out` [*shape, noise_columns] with the noise of `sample`, for a whole rollout."""
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

    action_columns, deviations, bounded = 1, 0, False

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


class Bernoulli:
    """`bits` actions that are 0 or 1 each, from logits; its methods do what `Normal`'s do."""

    deviations, bounded = 0, False

    def __init__(self, bits: int) -> None:
        self.parameters = self.action_columns = self.noise_columns = bits

    def noise(
        self, shape: tuple[int, ...], log_std: Tensor, generator: torch.Generator, out: Tensor
    ) -> Tensor:
        # Logistic noise: logit + noise is above 0 with the probability sigmoid(logit).
        uniform = torch.rand((*shape, self.noise_columns), generator=generator, out=out)
        uniform.clamp_(1e-10, 1.0 - 1e-7)
        return out.copy_(uniform.log() - torch.log1p(-uniform))

    def sample(self, params: Tensor, noise: Tensor, out: Tensor) -> Tensor:
        return out.copy_(params + noise > 0)

    def mode(self, params: Tensor) -> Tensor:
        return (params > 0).to(params.dtype)

    def log_prob(self, params: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        return functional.logsigmoid((2.0 * action - 1.0) * params).sum(-1)

    def entropy(self, params: Tensor, log_std: Tensor) -> Tensor:
        return (functional.softplus(params) - params * params.sigmoid()).sum(-1).mean()

    def kl(self, old: Tensor, old_log_std: Tensor, new: Tensor, new_log_std: Tensor) -> Tensor:
        spread = functional.softplus(new) - functional.softplus(old)
        return (spread + old.sigmoid() * (old - new)).sum(-1).mean()


class Joint:
    """Several distributions side by side, each of its own columns; they are independent."""

    def __init__(self, parts: Sequence[Normal | Categorical | Bernoulli]) -> None:
        self.parts = list(parts)
        self.parameters = sum(part.parameters for part in parts)
        self.action_columns = sum(part.action_columns for part in parts)
        self.noise_columns = sum(part.noise_columns for part in parts)
        self.deviations = sum(part.deviations for part in parts)
        self.bounded = any(part.bounded for part in parts)
        self._parameters = slices_of([part.parameters for part in parts])
        self._actions = slices_of([part.action_columns for part in parts])
        self._noise = slices_of([part.noise_columns for part in parts])
        self._deviations = slices_of([part.deviations for part in parts])

    def noise(
        self, shape: tuple[int, ...], log_std: Tensor, generator: torch.Generator, out: Tensor
    ) -> Tensor:
        for part, columns, dims in zip(self.parts, self._noise, self._deviations, strict=True):
            part.noise(shape, log_std[dims], generator, out[..., columns])
        return out

    def sample(self, params: Tensor, noise: Tensor, out: Tensor) -> Tensor:
        places = zip(self.parts, self._parameters, self._noise, self._actions, strict=True)
        for part, head, draws, columns in places:
            part.sample(params[..., head], noise[..., draws], out[..., columns])
        return out

    def mode(self, params: Tensor) -> Tensor:
        parts = zip(self.parts, self._parameters, strict=True)
        return torch.cat([part.mode(params[..., columns]) for part, columns in parts], -1)

    def log_prob(self, params: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        places = zip(self.parts, self._parameters, self._deviations, self._actions, strict=True)
        terms = [
            part.log_prob(params[..., head], log_std[dims], action[..., columns])
            for part, head, dims, columns in places
        ]
        return torch.stack(terms).sum(0)

    def entropy(self, params: Tensor, log_std: Tensor) -> Tensor:
        places = zip(self.parts, self._parameters, self._deviations, strict=True)
        terms = [part.entropy(params[..., head], log_std[dims]) for part, head, dims in places]
        return torch.stack(terms).sum()

    def kl(self, old: Tensor, old_log_std: Tensor, new: Tensor, new_log_std: Tensor) -> Tensor:
        places = zip(self.parts, self._parameters, self._deviations, strict=True)
        terms = [
            part.kl(old[..., head], old_log_std[dims], new[..., head], new_log_std[dims])
            for part, head, dims in places
        ]
        return torch.stack(terms).sum()

    def means(self, params: Tensor) -> Tensor:
        """Returns the means of the Normal parts that are `bounded`."""
        parts = zip(self.parts, self._parameters, strict=True)
        return torch.cat([params[..., columns] for part, columns in parts if part.bounded], -1)


def slices_of(widths: Sequence[int]) -> list[slice]:
    """Returns where each of some parts lies that follow one another."""
    ends = list(accumulate(widths))
    return [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]


# The part of a policy that an action space decides.
Distribution = Normal | Categorical | Bernoulli | Joint


def beyond_bounds(means: Tensor) -> Tensor:
    """Returns the mean square of how far action means [..., A] are beyond 1.1 times the bounds.

    The environment clamps there: without a push back, means wander off.
    """
    return (means.abs() - 1.1).clamp_min(0.0).square().sum(-1).mean()
