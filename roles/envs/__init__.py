"""Makes environments: one `VecEnv` over MuJoCo, mujoco_warp, MJX, Gymnasium, torch, Isaac Gym.

    env = make_env("Ant-v5", num_env=64, threads=2)
    observation = env.reset()
    step = env.step(action)

Importing this imports no torch: `check_env` runs in a launcher. Of a MuJoCo id it imports
mujoco, to read its options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gmi_drl.lazy import lazy
from gmi_drl.placement import MultiAgentConfig

from .adapters import ADAPTERS, check_env, choose_adapter, load
from .errors import (
    EnvActionError,
    EnvError,
    EnvRaised,
    EnvSpecError,
    EnvStateError,
    UnstableSimulation,
)
from .wrappers import single_wrappers, wrapped

if TYPE_CHECKING:
    import torch

    from .batch_wrappers import EnvWrapper
    from .protocol import Stacking, Step, VecEnv

__all__ = [
    "EnvActionError", "EnvError", "EnvRaised", "EnvSpecError", "EnvStateError", "EnvWrapper",
    "Stacking", "Step", "UnstableSimulation", "VecEnv", "check_env", "choose_adapter", "make_env",
]  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__,
    {
        ".batch_wrappers": ["EnvWrapper"],
        ".protocol": ["Stacking", "Step", "VecEnv"],
    },
)


def make_env(
    id: str,
    num_env: int,
    *,
    adapter: str = "auto",
    options: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    threads: int = 1,
    dtype: torch.dtype | None = None,
    wrappers: Sequence[Any] = (),
    multi_agent: MultiAgentConfig | None = None,
    of_team: bool = False,
) -> VecEnv:
    """Returns `num_env` environments `id`, environment i seeded seed + i; call `reset` first.

    `max_episode_steps` None takes the registered time limit. `threads` (the caller's included) is
    for MuJoCo physics. `dtype` (default float32) is that of observations and rewards. `wrappers`,
    the innermost first: names, or mappings of one name to its options. `multi_agent`: which policy
    acts for which agents (adapter pettingzoo; None: one for all). `of_team`: they are columns of
    one row. Raises EnvSpecError with every fault.
    """
    import torch

    from .protocol import VecEnvSpec

    faults = check_env(id, adapter, options, wrappers)
    if num_env < 1:
        faults.append(f"env.num_env={num_env}; must be at least 1. Use 1 or more.")
    if max_episode_steps is not None and max_episode_steps < 1:
        faults.append(
            f"env.max_episode_steps={max_episode_steps}; must be at least 1. Leave it out for the "
            "registered limit."
        )
    if threads < 1:
        faults.append(f"threads={threads}; must be at least 1. Use 1 for no extra thread.")
    if faults:
        raise EnvSpecError(*faults)
    spec = VecEnvSpec(
        env_id=id, num_env=num_env, options=dict(options or {}),
        max_episode_steps=max_episode_steps, device=torch.device(device), seed=seed,
        threads=threads, dtype=dtype or torch.float32, wrappers=tuple(single_wrappers(wrappers)),
        multi_agent=multi_agent, of_team=of_team,
    )  # fmt: skip
    env: VecEnv = load(ADAPTERS[choose_adapter(id, adapter)].make)(spec)
    env.seed = seed  # type: ignore[attr-defined]  # for who tells of one of them
    return wrapped(env, id, wrappers)
