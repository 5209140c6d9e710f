"""REINFORCE with a baseline (Williams, 1992; Sutton et al., 2000).

The advantage of an action is the discounted rewards that followed it, less the value of its state,
which is learned beside the policy. Where an episode goes on beyond the batch, the value of its last
observation stands for the remaining rewards.
"""

from __future__ import annotations

from gmi_drl.placement import PGConfig

from .a2c import A2C


class PG(A2C):
    """A2C's step with lambda = 1: advantages are returns less the baseline."""

    Settings = PGConfig
