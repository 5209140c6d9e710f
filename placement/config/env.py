"""Defines the config's section `env`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Count, Int, Section


class EnvConfig(Section):
    """The environment that is simulated."""

    id: str = Field(
        min_length=1,
        description="Environment id, such as `Ant-v5`; `module:Id` imports the module that "
        "registers it first, which may lie beside the config file.",
    )
    adapter: Literal["auto", "mujoco", "gymnasium", "torch", "warp", "mjx", "isaacgym"] = Field(
        default="auto",
        description="Which code steps it. `mujoco`: Gymnasium's MuJoCo family, Barkour and "
        "ShadowHand as a batch; `torch`: CartPole, Pendulum and BallBalance as tensor code; "
        "`gymnasium`: any registered id of [spaces that a policy "
        "takes](writing-a-role.md#environments-whose-spaces-are-others); `warp`: Ant, "
        "BallBalance, Barkour, HalfCheetah, Humanoid and ShadowHand on a GPU, only when named "
        "(see [simulation on the GPU](gpu-simulation.md)); `mjx`: some of these by MuJoCo in "
        "JAX, only when named; `isaacgym`: IsaacGymEnvs tasks. `auto` takes the fastest that has "
        "the id.",
    )
    num_env: Count = Field(
        default=64,
        le=1_000_000,
        description="Environments in each GMI (not in all of them together). `auto`: what "
        "`gmi-drl tune` finds to be fastest.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the environment."
    )
    max_episode_steps: Int | None = Field(
        default=None,
        ge=1,
        description="Time limit of an episode in steps; `null`: the one the id is registered with.",
    )
