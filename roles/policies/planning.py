"""A policy that plans: it acts by the best of many plans, tried in a model of the environment.

N = environments, K = candidates, H = steps of a plan, P = particles (networks of the model that try
each candidate), O = numbers of an observation, A = of an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.placement import CEMConfig

from .off_policy import ExploringPolicy

_SEED: Final = 0  # of the candidates' noise, the same for every plan
_LEAST_STD: Final = 0.02


class PlanningPolicy(ExploringPolicy):
    """Acts by the first action of a plan, found by the cross-entropy method or MPPI.

    `network` is the model: an EnsembleModel or a KnownModel. Candidates are drawn by the same
    random numbers each time, so that the action is a function of the observation.
    """

    def __init__(self, network: Any, action_columns: int, settings: CEMConfig) -> None:
        super().__init__(network, action_columns, noise_columns=action_columns)
        self._settings = settings
        shape = (settings.plan_iterations, settings.candidates, settings.plan_length)
        draws = torch.Generator().manual_seed(_SEED)
        noise = torch.randn(*shape, action_columns, generator=draws)
        self._noise = noise.to(self.at_random.device)  # [I, K, H, A]

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        noise, out = step["noise"], step["action"]
        if self.at_random.device.type == "cpu" and self.at_random > 0.0:
            return out.copy_(self.random(noise))  # no plan is needed
        chosen = self.explore(self.mode(step["observation"]), noise)
        return out.copy_(torch.where(self.at_random > 0.0, self.random(noise), chosen))

    def explore(self, out: Tensor, noise: Tensor) -> Tensor:
        return (out + self._settings.action_noise * noise).clamp_(-1.0, 1.0)

    @torch.no_grad()
    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        settings, rows = self._settings, observation.shape[0]
        mean = observation.new_zeros(rows, 1, settings.plan_length, self.action_columns)
        std = torch.ones_like(mean)
        for noise in self._noise:
            plans = (mean + std * noise).clamp(-1.0, 1.0)  # [N, K, H, A]
            returns = self.returns(observation, plans)
            if settings.planner == "mppi":
                # Differences, which stay finite where all returns are the least float.
                relative = returns - returns.amax(1, keepdim=True)
                weight = (relative / settings.plan_temperature).softmax(1)
            else:
                elites = returns.topk(settings.plan_elites, 1).indices
                weight = torch.zeros_like(returns).scatter_(1, elites, 1.0 / settings.plan_elites)
            weight = weight[:, :, None, None]
            mean = (weight * plans).sum(1, keepdim=True)
            if settings.planner == "cem":
                variance = (weight * (plans - mean).square()).sum(1, keepdim=True)
                std = variance.sqrt().clamp(min=_LEAST_STD)
        return mean[:, 0, 0]

    def returns(self, observation: Tensor, plans: Tensor) -> Tensor:
        """Returns the discounted return [N, K] of each plan [N, K, H, A], by the model's mean.

        A return that is not finite becomes the least float.
        """
        model, (rows, candidates) = self.network, plans.shape[:2]
        states = observation.repeat_interleave(candidates, 0).expand(model.members, -1, -1)
        total, discount = observation.new_zeros(rows * candidates), 1.0
        for actions in plans.flatten(0, 1).unbind(1):
            states, reward = model.predict(states, actions)
            total = total + discount * reward.mean(0)
            discount *= self._settings.gamma
        worst = torch.finfo(total.dtype).min
        return total.nan_to_num(worst, worst, worst).view(rows, candidates)
