"""Makes the environments in torch by their ids."""

from __future__ import annotations

from typing import Any

from gmi_drl.roles.envs.options import checked_options
from gmi_drl.roles.envs.protocol import VecEnvSpec

from .ball_balance import BallBalance
from .base import TorchVecEnv
from .cartpole import CartPole
from .options import OPTIONS
from .pendulum import Pendulum

ENVS: dict[str, Any] = {env.env_id: env for env in (CartPole, Pendulum, BallBalance)}


def make_torch_env(spec: VecEnvSpec) -> TorchVecEnv:
    options = checked_options(OPTIONS[spec.env_id], spec.env_id, spec.options)
    env: TorchVecEnv = ENVS[spec.env_id](spec, options)
    return env
