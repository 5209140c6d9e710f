"""Planning by a model of the environment, which is learned from experience, or known.

With a learned model this is PETS (Chua et al., 2018), whose networks differ in initial weights.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from gmi_drl.placement import AlgorithmConfig, CEMConfig, hidden_sizes
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.models.ensemble import EnsembleModel
from gmi_drl.roles.models.known import KnownModel
from gmi_drl.roles.policies.actor_critic import observation_width
from gmi_drl.roles.policies.off_policy import bounded_width
from gmi_drl.roles.policies.planning import PlanningPolicy
from gmi_drl.roles.policies.trunk import ACTIVATIONS
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses
from .mbpo import check_model_spaces


class CEM(Algorithm):
    """Trains the ensemble that its policy plans by, on steps that are kept."""

    Settings: ClassVar[type[AlgorithmConfig]] = CEMConfig
    stats = ("model_loss", "model_error")
    bootstrap = ()
    recorded = ("next_observation", "terminated")
    segment_fields = ("action", "reward", "done", "terminated", "next_observation")
    replayed = ("raw_observation", "action", "reward", "next_observation")
    network_class = EnsembleModel
    network_fault = "it is no ensemble"
    settings: CEMConfig
    policy: PlanningPolicy

    @classmethod
    def make_network(
        cls, settings: Any, env: VecEnv, generator: torch.Generator | None
    ) -> nn.Module:
        check_model_spaces("cem", env)
        width, action = observation_width(env.observation_space), bounded_width(env.action_space)
        assert action is not None
        if settings.model != "learned":
            return KnownModel(settings.model, env)
        return EnsembleModel(
            width, action, settings.ensemble, hidden_sizes(settings.network), generator,
            ACTIVATIONS[settings.activation](),
        )  # fmt: skip

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> PlanningPolicy:
        columns = len(network.low) if isinstance(network, KnownModel) else network.action
        return PlanningPolicy(network, columns, settings)

    def before_sampling(self, steps: int) -> None:
        self.policy.at_random.fill_(float(steps < self.settings.random_steps))

    def losses(self, batch: Batch) -> Losses:
        model = self.policy.network
        observation, next_observation = batch["observation"], batch["next_observation"]
        inputs = torch.cat([observation, batch["action"]], -1)
        targets = model.targets_of(observation, next_observation, batch["reward"])
        # The last observation of an episode may be no number, and is then learned as no change.
        targets = targets.nan_to_num(0.0, 0.0, 0.0)
        loss = model.loss(inputs.unsqueeze(0), targets, self.settings.model_beta)
        error = model.errors(inputs, targets).mean()
        return Losses(loss, {"model_loss": loss.detach(), "model_error": error})
