"""How long the gradient of a run is, asked of the class that trains in it."""

from __future__ import annotations

from gmi_drl.comm import solo_group
from gmi_drl.placement import Config, Layout
from gmi_drl.roles.algorithms import with_settings
from gmi_drl.roles.policies.flat_parameters import FlatParameters

from .acting import ActingRole
from .manager import GMI_manager, GmiContext
from .role import DRL_role


def gradient_numel(role_class: type[DRL_role], config: Config, layout: Layout) -> int | None:
    """Return the numbers that GMIs reduce for each minibatch: the network's, and of its stats.

    Makes the role of the layout's first trainer outside a run, with one environment, and has it
    build its own network, for the algorithm that the config names. None for a class that reduces no
    such gradient.
    """
    if not issubclass(role_class, ActingRole):
        return None
    spec = layout.holding("trainer")[0]
    context = GmiContext(spec.gmi_id, layout, with_settings(config), solo_group())
    GMI_manager.bind(context)
    try:
        role = role_class(spec.gmi_id, "+".join(spec.roles), spec.gpu_id)
        role.build_for_spaces()
        return FlatParameters(role.policy.network).numel + len(role.algorithm.stats)
    finally:
        GMI_manager.bind(None)
