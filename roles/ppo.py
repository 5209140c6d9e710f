"""Proximal policy optimisation (Schulman et al., 2017) on one flat parameter vector.

Gradients, KL divergence and losses of a minibatch travel in one bucket: one reduction a
minibatch, after which every GMI holds the same numbers and takes the same step. With equal
minibatches on k GMIs that step is the step of one GMI on the joined minibatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.placement import AlgorithmConfig

from .distributions import beyond_bounds
from .gradient_step import GradientStep
from .policy import ActorCritic, FlatParameters
from .rollout import Columns

_TAIL = ("kl", "policy_loss", "value_loss", "entropy", "bounds_loss", "clip_fraction")
_MIN_LR, _MAX_LR = 1e-6, 1e-2


@dataclass(frozen=True)
class LossParts:
    """The parts of one minibatch's loss, scalars; `total` is what is differentiated."""

    total: Tensor
    kl: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    bounds_loss: Tensor
    clip_fraction: Tensor


def ppo_loss(
    policy: ActorCritic,
    rows: Tensor,
    columns: Columns,
    old_log_std: Tensor,
    settings: AlgorithmConfig,
) -> LossParts:
    """Clipped surrogate, clipped value loss, entropy and bounds loss of rows [B, width].

    Values and returns in the rows are in the value normaliser's units, advantages normalised.
    """
    dist, clip = policy.distribution, settings.clip
    head = policy(rows[:, columns.observation])
    params, value = head[:, :-1], head[:, -1]

    log_ratio = dist.log_prob(params, policy.log_std, rows[:, columns.action])
    log_ratio = log_ratio - rows[:, columns.log_prob]
    ratio = log_ratio.exp()
    advantage = rows[:, columns.advantage]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    policy_loss = -surrogate.mean()

    ret, old_value = rows[:, columns.ret], rows[:, columns.value]
    error = (value - ret).square()
    if settings.clip_value_loss:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - ret).square())
    value_loss = 0.5 * error.mean()

    total = policy_loss + settings.value_coef * value_loss
    entropy = dist.entropy(params, policy.log_std)
    if settings.entropy_coef:
        total = total - settings.entropy_coef * entropy
    bounds_loss = value_loss.new_zeros(())
    if settings.bounds_coef and policy.log_std.numel():
        bounds_loss = beyond_bounds(params)
        total = total + settings.bounds_coef * bounds_loss
    with torch.no_grad():
        kl = dist.kl(rows[:, columns.parameters], old_log_std, params, policy.log_std)
        clipped = ((ratio - 1.0).abs() > clip).float().mean()
    return LossParts(total, kl, policy_loss, value_loss, entropy, bounds_loss, clipped)


class Learner:
    """Updates a policy from rows of experience, together with the other GMIs it is connected to."""

    def __init__(
        self,
        policy: ActorCritic,
        columns: Columns,
        rows: int,
        settings: AlgorithmConfig,
        generator: torch.Generator,
        loss: Callable[..., LossParts] = ppo_loss,
    ) -> None:
        self._policy, self._columns, self._settings = policy, columns, settings
        self._generator, self._loss = generator, loss
        self._step = GradientStep(policy, _TAIL, settings)
        size, device = rows // settings.minibatches, self.parameters.data.device
        self._order = torch.zeros(rows, dtype=torch.int64, device=device)
        self._picks = [self._order[i * size : (i + 1) * size] for i in range(settings.minibatches)]
        self._minibatch = torch.zeros(size, columns.width, device=device)

    def connect(self, group: Group) -> None:
        """Make the bucket that gradients are reduced in; again after the group was re-formed."""
        self._step.connect(group)

    @property
    def parameters(self) -> FlatParameters:
        return self._step.parameters

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._step.optimizer

    @property
    def learning_rate(self) -> float:
        return self._step.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._step.learning_rate = value

    def update(self, rows: Tensor, old_log_std: Tensor) -> tuple[dict[str, float], float]:
        """Train on rows [B, width] for all epochs.

        Returns the means of the loss parts over all minibatches and GMIs (and the last
        learning rate), and the seconds spent in reductions.
        """
        reduce_s = 0.0
        for _ in range(self._settings.epochs):
            torch.randperm(len(rows), generator=self._generator, out=self._order)
            for pick in self._picks:
                torch.index_select(rows, 0, pick, out=self._minibatch)
                parts = self._loss(
                    self._policy, self._minibatch, self._columns, old_log_std, self._settings
                )
                reduce_s += self._step.take(parts, self._adapt)
        stats = self._step.means()
        return stats | {"learning_rate": self.learning_rate}, reduce_s

    def _adapt(self, kl: float) -> None:
        if self._settings.schedule == "adaptive":
            self.learning_rate = adapt_learning_rate(
                self.learning_rate, kl, self._settings.kl_target
            )


def adapt_learning_rate(learning_rate: float, kl: float, target: float) -> float:
    """The next step's learning rate: down by 1.5 above 2 x target KL, up by 1.5 below half of it.

    `kl` is the mean over all GMIs, so that every GMI makes the same choice.
    """
    if kl > 2.0 * target:
        return max(learning_rate / 1.5, _MIN_LR)
    if 0.0 <= kl < 0.5 * target:
        return min(learning_rate * 1.5, _MAX_LR)
    return learning_rate
