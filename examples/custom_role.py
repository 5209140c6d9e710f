"""A role of your own: PPO whose reward is shaped before it is learned from.

    gmi-drl launch examples/custom_role.yaml      # the config names custom_role:CalmTrainer
    python examples/custom_role.py                # the same from Python

`CalmTrainer` keeps the whole holistic loop and changes one thing. `Pinger` shows the bare
`DRL_role`: a routine, a collective, and messages between GMIs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import gmi_drl
from gmi_drl.roles.envs import Step, VecEnv


class CalmEnv:
    """Any VecEnv, paying less for large actions."""

    def __init__(self, env: VecEnv, cost: float) -> None:
        self._env, self._cost = env, cost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: torch.Tensor) -> Step:
        step = self._env.step(action)
        return step._replace(reward=step.reward - self._cost * action.square().sum(-1))


class CalmTrainer(gmi_drl.Holistic):
    """The holistic role on calmer environments; `cost` comes from the config's `params`."""

    def GMI_run(self, cost: float = 0.05, **params: Any) -> dict[str, Any]:
        self.cost = cost
        return super().GMI_run(**params)

    def make_env(self, num_env: int | None = None, seed: int = 0) -> VecEnv:
        return CalmEnv(super().make_env(num_env, seed), self.cost)  # type: ignore[return-value]


class Pinger(gmi_drl.DRL_role):
    """Every GMI sends its number around the ring and takes part in a mean."""

    def GMI_run(self, **params: Any) -> dict[str, float]:
        ids = [gmi.gmi_id for gmi in self.mgr.layout.gmis]
        right = ids[(ids.index(self.GMI_id) + 1) % len(ids)]
        left = ids[ids.index(self.GMI_id) - 1]
        self.GMI_send(torch.tensor([float(self.GMI_id)]), right)
        received = self.GMI_recv(left)
        mean = self.GMI_collective(torch.tensor([float(self.GMI_id)]))
        return {"from_left": float(received), "mean_id": float(mean)}


if __name__ == "__main__":
    here = Path(__file__).parent
    result = gmi_drl.launch(here / "custom_role.yaml", roles={"trainer": CalmTrainer})
    print(result)
    rings = gmi_drl.launch(here / "custom_role.yaml", roles={"trainer": Pinger}, view="none")
    print([gmi for gmi in rings.gmis])
