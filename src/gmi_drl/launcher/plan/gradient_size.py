"""How long a run's gradient is: asked of environment and network, in a process of its own."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gmi_drl import runtime
from gmi_drl.placement import hidden_sizes
from gmi_drl.roles.policies.alignment import PARAMETER, aligned

if TYPE_CHECKING:
    from gmi_drl.placement import Config

_DEADLINE: Final = timedelta(seconds=60)
_TAIL: Final = 6  # means of the loss parts, which travel with the gradient
# Where the environment cannot be asked: observations and actions of the paper's Ant.
_OBS_DIM, _ACT_DIM = 60, 8
PRELOAD: Final = (
    "torch",
    "gymnasium",
    "gmi_drl.comm.reducers.mrr",
    "gmi_drl.roles.policies.policy",
)


@dataclass(frozen=True)
class GradientSize:
    """Numbers in a gradient; `assumed` says why it is a guess, and is empty when it is not."""

    numel: int
    assumed: str = ""


class Sizer:
    """The actor that makes one environment and the policy for it."""

    def numel(self, config: Config, path: Sequence[str]) -> int:
        """Numbers of the policy's flat parameters, with padding.

        `path`: where modules are found, before those found here.
        """
        sys.path[:0] = [folder for folder in path if folder not in sys.path]
        from gmi_drl.roles.envs import make_env
        from gmi_drl.roles.policies.policy import (
            ActorCritic,
            FlatParameters,
            distribution_for,
            observation_width,
        )

        settings, env = config.algorithm, config.env
        envs = make_env(env.id, 1, adapter=env.adapter, options=env.options)
        try:
            policy = ActorCritic(
                observation_width(envs.observation_space),
                distribution_for(envs.action_space),
                hidden_sizes(settings.network),
                settings.activation,
            )
        finally:
            envs.close()
        return FlatParameters(policy).numel


def asked(config: Config) -> GradientSize:
    """The size for this config's environment. Needs a running runtime; starts one process."""
    actor: Any = runtime.remote(Sizer).options(name="gradient size").remote()
    try:
        numel = runtime.get(actor.numel.remote(config, list(sys.path)), timeout=_DEADLINE)
    except runtime.ActorRuntimeError as error:
        return assumed(config, str(error).strip().splitlines()[-1])
    finally:
        runtime.kill(actor)
    return GradientSize(numel + _TAIL)


def assumed(config: Config, why: str) -> GradientSize:
    """The size with the observations and actions of the paper's Ant."""
    sizes = [_OBS_DIM, *hidden_sizes(config.algorithm.network), _ACT_DIM + 1]
    parameters = [_ACT_DIM]  # deviations, then weights and biases of each layer
    for a, b in itertools.pairwise(sizes):
        parameters += [a * b, b]
    return GradientSize(sum(aligned(count, PARAMETER) for count in parameters) + _TAIL, why)
