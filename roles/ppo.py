"""Proximal policy optimisation (Schulman et al., 2017) on one flat parameter vector.

Gradients, KL divergence and losses of a minibatch travel in one bucket: one reduction a
minibatch, after which every GMI holds the same numbers and takes the same step. With equal
minibatches on k GMIs that step is the step of one GMI on the joined minibatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.placement import AlgorithmConfig

from .errors import DivergedError
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
        # Means beyond the action bounds (1.1 of them) are pushed back: the environment clamps.
        bounds_loss = (params.abs() - 1.1).clamp_min(0.0).square().sum(-1).mean()
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
        self.parameters = FlatParameters(policy)
        self._gradient = torch.zeros_like(self.parameters.data)
        self.parameters.data.grad = self._gradient
        self.optimizer = torch.optim.Adam(
            [self.parameters.data], lr=settings.learning_rate, eps=1e-5, fused=True
        )
        size, device = rows // settings.minibatches, self.parameters.data.device
        self._order = torch.zeros(rows, dtype=torch.int64, device=device)
        self._picks = [self._order[i * size : (i + 1) * size] for i in range(settings.minibatches)]
        self._minibatch = torch.zeros(size, columns.width, device=device)

    def connect(self, group: Group) -> None:
        """Make the bucket that gradients are reduced in; again after the group was re-formed."""
        n, device = self.parameters.numel, self.parameters.data.device
        self._reducer = group.bucket("gradient", n + len(_TAIL), torch.float32)
        # On the CPU autograd accumulates straight into the memory that is reduced; gradients of a
        # GPU are staged through it (not yet run on hardware).
        self._local = self._reducer.buffer
        if device.type != "cpu":
            self._local = torch.zeros(n + len(_TAIL), device=device)
        self.parameters.bind_gradients(self._local)

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.optimizer.param_groups[0]["lr"] = value

    def update(self, rows: Tensor, old_log_std: Tensor) -> tuple[dict[str, float], float]:
        """Train on rows [B, width] for all epochs.

        Returns the means of the loss parts over all minibatches and GMIs (and the last
        learning rate), and the seconds spent in reductions.
        """
        totals = torch.zeros(len(_TAIL))
        reduce_s = 0.0
        for _ in range(self._settings.epochs):
            torch.randperm(len(rows), generator=self._generator, out=self._order)
            for pick in self._picks:
                torch.index_select(rows, 0, pick, out=self._minibatch)
                reduce_s += self._step(old_log_std)
                totals += self._reducer.result[-len(_TAIL) :]
        means = totals / (self._settings.epochs * len(self._picks))
        if not bool(torch.isfinite(means).all()):
            raise DivergedError(dict(zip(_TAIL, means.tolist(), strict=True)))
        stats = dict(zip(_TAIL, means.tolist(), strict=True))
        return stats | {"learning_rate": self.learning_rate}, reduce_s

    def _step(self, old_log_std: Tensor) -> float:
        local, n = self._local, self.parameters.numel
        local.zero_()
        parts = self._loss(
            self._policy, self._minibatch, self._columns, old_log_std, self._settings
        )
        torch.autograd.backward(parts.total)
        with torch.no_grad():
            torch.stack([getattr(parts, name) for name in _TAIL], out=local[n:])
            start = perf_counter()
            if local is not self._reducer.buffer:
                self._reducer.buffer.copy_(local)
            result = self._reducer.reduce("mean")
            waited = perf_counter() - start
            if self._settings.schedule == "adaptive":
                self.learning_rate = adapt_learning_rate(
                    self.learning_rate, float(result[n]), self._settings.kl_target
                )
            # `result` is shared and read-only: clip into a gradient of our own.
            scale = 1.0
            if self._settings.max_grad_norm:
                norm = float(torch.linalg.vector_norm(result[:n]))
                scale = min(1.0, self._settings.max_grad_norm / (norm + 1e-6))
            self._gradient.copy_(result[:n]).mul_(scale)
            self.optimizer.step()
        return waited


def adapt_learning_rate(learning_rate: float, kl: float, target: float) -> float:
    """The next step's learning rate: down by 1.5 above 2 x target KL, up by 1.5 below half of it.

    `kl` is the mean over all GMIs, so that every GMI makes the same choice.
    """
    if kl > 2.0 * target:
        return max(learning_rate / 1.5, _MIN_LR)
    if 0.0 <= kl < 0.5 * target:
        return min(learning_rate * 1.5, _MAX_LR)
    return learning_rate
