"""Training on segments from elsewhere: IMPALA and A3C, together with the other trainers."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.algorithms.async_loss import LOSSES, AsyncLoss, AsyncLossParts
from gmi_drl.roles.policies.normalize import (
    Normalizers,
    RunningNormalizer,
    batch_moments,
    merge_moments,
)
from gmi_drl.roles.policies.policy import ActorCritic, FlatParameters
from gmi_drl.roles.policies.published import PublishedPolicy
from gmi_drl.roles.samples.segments import Segments
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.roles.telemetry.phases import phase

from .gradient_step import GradientStep, check_finite, checked_parts

_TAIL: Final = ("kl", "rho", "policy_loss", "value_loss", "entropy", "bounds_loss")


class AsyncLearner:
    """Updates a policy from segments, together with the other trainers it is connected to.

    Every trainer brings segments of its own and takes the same steps: with batches of one size
    on k trainers, the step of one on the joined batch. `version` counts the updates; agents name
    the one they act with.
    """

    def __init__(
        self,
        policy: ActorCritic,
        normalizers: Normalizers,
        settings: AlgorithmConfig,
        generator: torch.Generator,
        loss: AsyncLoss | None = None,
        static: bool | None = None,
    ) -> None:
        """`generator`: the order of minibatches, this trainer's own; `loss`: instead of that of
        `settings.name`; `static`: the way of a GPU, wherever the policy is (None: on all devices
        but the CPU)."""
        self._policy, self._normalizers, self._settings = policy, normalizers, settings
        self._generator = generator
        self._loss = LOSSES[settings.name] if loss is None else loss
        self._clock = Clock(policy.log_std.device)
        # Not captured: segments are prepared anew each time, in memory that is new as well.
        self._step = GradientStep(policy, _TAIL, settings, self._clock, static)
        self.published = PublishedPolicy(self._step.parameters, normalizers)
        self.version = 0

    def connect(self, group: Group) -> None:
        """Make the buckets that trainers meet in; again after the group was re-formed."""
        self._step.connect(group)
        observations = self._normalizers.observations
        width = 0 if observations is None else observations.width
        self._moments = group.bucket(
            "moments", 3 + 1 + 2 * width, torch.float64, self.parameters.data.device
        )
        self._clock.clear()

    @property
    def parameters(self) -> FlatParameters:
        return self._step.parameters

    @property
    def learning_rate(self) -> float:
        return self._step.descent.learning_rate

    def anneal(self, progress: float) -> None:
        """Set the learning rate for `progress`, the share of all steps that is done: 0 to 1."""
        if self._settings.schedule == "linear":
            rate = self._settings.learning_rate * max(1.0 - progress, 0.0)
            self._step.descent.learning_rate = rate

    def update(self, segments: Segments) -> tuple[dict[str, float], float]:
        """Train on segments for all epochs; collective. They may be overwritten afterwards.

        On a GPU it waits for the device once, when all is queued. Returns the means of the loss
        parts over all minibatches and trainers, with the learning rate, and the seconds spent
        waiting for the other trainers. DivergedError, on all of them, if a loss is not finite.
        """
        parts = self._settings.minibatches
        size, rest = divmod(segments.width, parts)
        if rest or not size:
            raise ValueError(
                f"{segments.width} environments in a batch: {parts} minibatches must divide them. "
                "Change algorithm.minibatches, env.num_env or experience.batch_segments."
            )
        self._clock.begin("train")
        batch, targets = segments.prepare(self._normalizers.observations), []
        for epoch in range(self._settings.epochs):
            minibatches = [batch]
            if parts > 1:
                order = torch.randperm(
                    segments.width, generator=self._generator, device=self._generator.device
                )
                minibatches = [batch.pick(some) for some in order.view(parts, size).unbind()]
            for minibatch in minibatches:
                beat("update")
                # The targets are those of the policy as it is by now, each time.
                loss = self._loss(self._policy, minibatch, self._normalizers.values, self._settings)
                self._step.take(checked_parts(self._loss, loss, AsyncLossParts))
                if epoch == 0:
                    targets.append(loss.targets)
        self._learn_statistics(segments, torch.cat(targets, 1))
        self._clock.stop()
        stats = self._step.means()
        check_finite(stats)
        self.version += 1
        return stats, self._clock.read().get("reduce", 0.0)

    def _learn_statistics(self, segments: Segments, targets: Tensor) -> None:
        """Merge the moments of what all trainers saw into the normalisers."""
        observations, values = self._normalizers.observations, self._normalizers.values
        if observations is None and values is None:
            return
        mine = self._moments.buffer
        batch_moments(targets.reshape(-1, 1), mine[:3])
        if observations is not None:
            batch_moments(segments.observation.flatten(0, 1), mine[3:])
        self._clock.begin("reduce")
        with phase("reduce"):
            everyone = self._moments.gather()
        self._clock.begin("train")
        if values is not None:
            self._learn_scale(values, merge_moments(everyone[:, :3]))
        if observations is not None:
            observations.update(merge_moments(everyone[:, 3:]))

    def _learn_scale(self, values: RunningNormalizer, moments: Tensor) -> None:
        # The head is changed with the normaliser, so that values stay what they were (van Hasselt
        # et al., 2016, "PopArt"). Without it targets made of values grow with their own deviation,
        # and with old experience nothing stops them.
        mean, inv_std = values.mean.clone(), values.inv_std.clone()
        values.update(moments)
        scale = values.inv_std / inv_std
        self._policy.map_value(scale, (mean - values.mean) * values.inv_std)

    # What all trainers hold alike ----------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state that all trainers share (their generators are their own), partly the tensors
        themselves: copy or write it before training goes on."""
        observations, values = self._normalizers.observations, self._normalizers.values
        return {
            "parameters": self.parameters.packed(self.parameters.data.detach()),
            "optimizer": self._step.descent.state_dict(),
            "observation_normalizer": observations and observations.state_dict(),
            "value_normalizer": values and values.state_dict(),
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the one that gave `state`; the normalisers must be on and off as there."""
        with torch.no_grad():
            self.parameters.unpack(state["parameters"], self.parameters.data)
        self._step.descent.load_state_dict(state["optimizer"])
        if self._normalizers.observations is not None:
            self._normalizers.observations.load_state_dict(state["observation_normalizer"])
        if self._normalizers.values is not None:
            self._normalizers.values.load_state_dict(state["value_normalizer"])
        self.version = state["version"]
