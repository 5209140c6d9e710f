"""Proximal policy optimisation (Schulman et al., 2017) on one flat parameter vector.

Gradients, KL divergence and losses of a minibatch travel in one bucket: one reduction a
minibatch, after which every GMI holds the same numbers and takes the same step. With equal
minibatches on k GMIs that step is the step of one GMI on the joined minibatch. On a GPU an update
is queued without waiting for the device; `stats` reads what came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.graphs import Pool
from gmi_drl.roles.optimizers.gradient_step import RepeatedStep, checked_parts
from gmi_drl.roles.policies.distributions import beyond_bounds
from gmi_drl.roles.policies.policy import ActorCritic, FlatParameters
from gmi_drl.roles.samples.rollout import Columns
from gmi_drl.roles.telemetry.clock import Clock

_TAIL = ("kl", "policy_loss", "value_loss", "entropy", "bounds_loss", "clip_fraction")


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
        *,
        clock: Clock | None = None,
        pool: Pool | None = None,
        static: bool | None = None,
    ) -> None:
        """`clock` gets the seconds of reductions and of the rest, as "reduce" and "train".

        `static`: the way of a GPU, wherever the policy is (None: on all devices but the CPU).
        `pool`: where that way's minibatch is captured, with the first one after `connect`; None:
        nowhere.
        """
        self._policy, self._columns, self._settings = policy, columns, settings
        self._generator, self._loss = generator, loss
        # Of the policy that sampled: a place of its own, which captured work can rely on.
        self._old_log_std = policy.log_std.detach().clone()
        device = self._old_log_std.device
        self._step = RepeatedStep(
            policy,
            _TAIL,
            settings,
            clock or Clock(device),
            self._minibatch_loss,
            pool,
            static,
        )
        size = rows // settings.minibatches
        self._order = torch.zeros(rows, dtype=torch.int64, device=device)
        self._picks = [self._order[i * size : (i + 1) * size] for i in range(settings.minibatches)]
        self._minibatch = torch.zeros(size, columns.width, device=device)

    def connect(self, group: Group) -> None:
        """Make the bucket that gradients are reduced in; again after the group was re-formed."""
        self._step.connect(group)

    def close(self) -> None:
        """Let captured work go; it waits for what is queued."""
        self._step.close()

    @property
    def parameters(self) -> FlatParameters:
        return self._step.parameters

    @property
    def learning_rate(self) -> float:
        """Of the next step. On a GPU, to read it waits for the device; to set it does not."""
        return self._step.descent.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._step.descent.learning_rate = value

    def update(self, rows: Tensor, old_log_std: Tensor) -> None:
        """Train on rows [B, width] for all epochs; collective.

        On a GPU the work is queued, and `rows` are in use until it is done.
        """
        self._old_log_std.copy_(old_log_std)
        for _ in range(self._settings.epochs):
            torch.randperm(len(rows), generator=self._generator, out=self._order)
            for pick in self._picks:
                beat()
                # Not captured with the rest: one launch either way, and rows may lie anywhere.
                torch.index_select(rows, 0, pick, out=self._minibatch)
                self._step.step()

    def stats(self) -> dict[str, float]:
        """Means of the loss parts over all minibatches and GMIs of the last update, and the last

        learning rate. Waits for the device. They may not be finite; see `check_finite`.
        """
        return self._step.means()

    def _minibatch_loss(self) -> LossParts:
        found = self._loss(
            self._policy, self._minibatch, self._columns, self._old_log_std, self._settings
        )
        return checked_parts(self._loss, found, LossParts)

    def state_dict(self) -> dict[str, Any]:
        """Parameters and optimizer, partly the tensors themselves."""
        return {
            "parameters": self.parameters.packed(self.parameters.data.detach()),
            "optimizer": self._step.descent.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into the tensors in use: what was captured stays good."""
        with torch.no_grad():
            self.parameters.unpack(state["parameters"], self.parameters.data)
        self._step.descent.load_state_dict(state["optimizer"])
