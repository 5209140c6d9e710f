"""The environments in torch by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.options import parse_options

from .ball_balance import BallBalance
from .base import TorchVecEnv
from .cartpole import CartPole
from .options import MAX_EPISODE_STEPS, OPTIONS
from .pendulum import Pendulum

ENVS: dict[str, Any] = {e.env_id: e for e in (CartPole, Pendulum, BallBalance)}


def make_torch_env(
    env_id: str,
    num_env: int,
    *,
    options: Mapping[str, Any],
    max_episode_steps: int | None,
    device: torch.device,
    seed: int,
    dtype: torch.dtype,
) -> TorchVecEnv:
    parsed, faults = parse_options(OPTIONS[env_id], options, f"env {env_id}")
    if faults:
        raise EnvSpecError(faults)
    limit = MAX_EPISODE_STEPS[env_id] if max_episode_steps is None else max_episode_steps
    made: TorchVecEnv = ENVS[env_id](
        num_env, parsed, max_episode_steps=limit, device=device, seed=seed, dtype=dtype
    )
    return made
