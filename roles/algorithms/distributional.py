"""Distributions of values: categorical (C51, Bellemare et al., 2017) and by quantiles (QR-DQN).

A network gives N numbers for each action. With `c51` they are the logits of N returns that are
evenly spaced over `value_range`; with `qr` (Dabney et al., 2018) they are the quantiles of the
return at (2 i + 1) / 2N.

B = rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from gmi_drl.placement import DQNConfig


def support(settings: DQNConfig, device: torch.device) -> Tensor:
    """Returns the values [N] whose probabilities C51 learns."""
    assert settings.value_range is not None
    return torch.linspace(*settings.value_range, settings.atoms, device=device)


def action_values(outputs: Tensor, settings: DQNConfig) -> Tensor:
    """Returns the values [B, actions] of what a network gives [B, actions * N]."""
    if settings.distributional == "none":
        return outputs
    by_action = outputs.view(*outputs.shape[:-1], -1, settings.outputs_per_action)
    if settings.distributional == "c51":
        return by_action.softmax(-1) @ support(settings, outputs.device)
    return by_action.mean(-1)


def project(probabilities: Tensor, values: Tensor, value_range: tuple[float, float]) -> Tensor:
    """Returns the distribution [B, N] on C51's support that is nearest to one on other values.

    The `probabilities` [B, N] of `values` [B, N] are shared between the two neighbours of each in
    the support, by distance, or go to its nearer end: algorithm 1 of Bellemare et al. (2017). Mass
    is kept, and the mean where no value lies outside.
    """
    low, high = value_range
    atoms = probabilities.shape[-1]
    position = values.clamp(low, high).sub_(low).mul_((atoms - 1) / (high - low))
    atom = torch.arange(atoms, device=position.device, dtype=position.dtype)
    # The share of each atom [B, N, 1] in each value [B, 1, N]. A GPU would scatter in any order.
    share = 1.0 - (position[:, None, :] - atom[:, None]).abs()
    return (share.clamp_(min=0.0) @ probabilities[:, :, None])[:, :, 0]


def categorical_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Returns the cross-entropy [B] of logits [B, N] against target probabilities [B, N]."""
    return -(target * logits.log_softmax(-1)).sum(-1)


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """Returns the losses [B] of quantiles [B, N] for values [B, M] drawn from a target.

    Dabney et al. (2018), equation 10: summed over the quantiles, the mean over the targets.
    """
    count = quantiles.shape[-1]
    midpoints = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    estimates = quantiles[:, :, None].expand(-1, -1, targets.shape[-1])
    samples = targets[:, None, :].expand_as(estimates)
    weight = (midpoints[:, None] - (samples < estimates).to(quantiles.dtype)).abs()
    loss = huber_loss(estimates, samples, reduction="none", delta=kappa)
    summed: Tensor = (weight * loss).sum(1)
    return summed.mean(-1) / kappa
