"""Model-based policy optimization (Janner et al., 2019): SAC that is trained on a model's steps."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from gmi_drl.placement import AlgorithmConfig, MBPOConfig
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.models.ensemble import EnsembleModel
from gmi_drl.roles.models.fitting import ModelFit
from gmi_drl.roles.models.terminations import check_termination, termination_of
from gmi_drl.roles.policies.off_policy import ActorWithCritics, bounded_width
from gmi_drl.roles.samples.replay import ReplayBuffer
from gmi_drl.roles.samples.replay.imagined import ModelReplay

from .sac import SAC
from .terms import unfit_actions


class MBPO(SAC):
    """SAC whose minibatches are mostly of short roll-outs of a learned model."""

    Settings: ClassVar[type[AlgorithmConfig]] = MBPOConfig
    settings: MBPOConfig

    @classmethod
    def make_network(
        cls, settings: Any, env: VecEnv, generator: torch.Generator | None
    ) -> ActorWithCritics:
        check_model_spaces("mbpo", env)
        width = int(np.prod(env.observation_space.shape or ()))
        columns = bounded_width(env.action_space) or 0
        check_termination(settings.termination, width, columns)
        return super().make_network(settings, env, generator)

    def source(self, replay: ReplayBuffer, generator: torch.Generator) -> ReplayBuffer:
        """Returns the replay with a model beside it, initialised by what `generator` draws."""
        settings, width = self.settings, replay.observation_width
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        model = EnsembleModel(
            width, self.policy.action_columns, settings.ensemble, settings.model_network,
            torch.Generator().manual_seed(seed),
        ).to(generator.device)  # fmt: skip
        return ModelReplay(
            replay, settings, ModelFit(model, settings, generator), self.policy,
            self.normalizers.observations, termination_of(settings.termination),
        )  # fmt: skip


def check_model_spaces(name: str, env: VecEnv) -> None:
    """Raises EnvSpecError where no model of vectors can be learned, or no plan made."""
    observation, action = env.observation_space, env.action_space
    faults = []
    if not (isinstance(observation, spaces.Box) and np.issubdtype(observation.dtype, np.floating)):
        faults.append(
            f"env.id: observation space {observation}; {name} learns a model of numbers, a Box of "
            "floats. Use algorithm.name: dqn or sac, or wrap it in TransformObservation."
        )
    if bounded_width(action) is None:
        faults.append(unfit_actions(action, name, "a Box with bounds", "sac, ppo or dqn"))
    if faults:
        raise EnvSpecError(*faults)
