"""Asks the class that trains for the length of its gradient, in a process of its own."""

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
    from gmi_drl.placement import Config, Layout
    from gmi_drl.roles import DRL_role

_DEADLINE: Final = timedelta(seconds=60)
_TAIL: Final = 6  # means of the loss parts, which travel with the gradient
# Where the environment cannot be asked: observations and actions of the paper's Ant.
_OBS_DIM, _ACT_DIM = 60, 8
PRELOAD: Final = (
    "torch",
    "gymnasium",
    "gmi_drl.comm.reducers.mrr",
    "gmi_drl.roles.role.acting",
)


@dataclass(frozen=True)
class GradientSize:
    """Numbers in a gradient; `assumed` says why it is a guess, and is empty when it is not."""

    numel: int
    assumed: str = ""


class Sizer:
    """The actor that builds what one GMI trains."""

    def numel(
        self, config: Config, layout: Layout, trainer: type[DRL_role] | str, path: Sequence[str]
    ) -> int | None:
        """Returns the numbers that `trainer` reduces, with padding; None if it is not known.

        `path`: where modules are found, before those found here.
        """
        sys.path[:0] = [folder for folder in path if folder not in sys.path]
        from gmi_drl.roles.role.acting import gradient_numel
        from gmi_drl.roles.role.role import load_role

        role = load_role(trainer) if isinstance(trainer, str) else trainer
        return gradient_numel(role, config, layout)


def asked(config: Config, layout: Layout, trainer: type[DRL_role] | str) -> GradientSize:
    """Asks the class that trains for its size. Needs a running runtime; starts one process."""
    actor: Any = runtime.remote(Sizer).options(name="gradient size").remote()
    try:
        asking = actor.numel.remote(config, layout, trainer, list(sys.path))
        numel = runtime.get(asking, timeout=_DEADLINE)
    except runtime.ActorRuntimeError as error:
        return assumed(config, str(error).strip().splitlines()[-1])
    finally:
        runtime.kill(actor)
    if numel is None:
        return assumed(config, f"role {trainer} says nothing of it")
    return GradientSize(numel)


def assumed(config: Config, why: str) -> GradientSize:
    """The size with the observations and actions of the paper's Ant."""
    sizes = [_OBS_DIM, *hidden_sizes(config.algorithm.network), _ACT_DIM + 1]
    parameters = [_ACT_DIM]  # deviations, then weights and biases of each layer
    for a, b in itertools.pairwise(sizes):
        parameters += [a * b, b]
    return GradientSize(sum(aligned(count, PARAMETER) for count in parameters) + _TAIL, why)
