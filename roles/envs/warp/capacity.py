"""Computes how many contacts and constraint rows to make room for.

mujoco_warp allocates both once and drops what does not fit. The rule here:

    nconmax = contacts of every moving geom with the world, all at once, + one for every pair of
              moving geoms that may collide. It is an average: the N environments share N * nconmax
              places, and the broad phase, which has as many for its candidate pairs, always fits.
    njmax   = rows of every joint limit, friction and equality, of all contacts with the world, and
              of one contact between moving geoms for every body. It holds for each environment.

What does not fit after all is counted on the device and told by `WarpVecEnv`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mujoco  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

_PLANE = int(mujoco.mjtGeom.mjGEOM_PLANE)
_SPHERE = int(mujoco.mjtGeom.mjGEOM_SPHERE)
_CAPSULE = int(mujoco.mjtGeom.mjGEOM_CAPSULE)
_MOST = 8  # contacts of a pair: two boxes, face on face
_EQUALITY_ROWS = 6  # of one equality constraint, at most (a weld)


class Capacity(NamedTuple):
    nconmax: int  # contacts per environment, on average over the batch
    njmax: int  # constraint rows of each environment


def capacity(model: mujoco.MjModel, pairs: NDArray[np.int32]) -> Capacity:
    """Applies the rule above to the geom `pairs` [P, 2] that may collide."""
    world = model.body_weldid[model.geom_bodyid] == 0  # geoms that never move
    fixed = world[pairs].any(1) if len(pairs) else np.zeros(0, dtype=bool)
    number = np.array([_contacts(*model.geom_type[pair]) for pair in pairs], dtype=int)
    rows = np.array([_rows(model, pair) for pair in pairs], dtype=int)
    moving_rows = int(rows[~fixed].max()) if (~fixed).any() else 0
    limits = int(model.jnt_limited.sum() + model.tendon_limited.sum())
    friction = int((model.dof_frictionloss > 0).sum() + (model.tendon_frictionloss > 0).sum())
    constant_rows = limits + friction + _EQUALITY_ROWS * int(model.neq)
    touching = int((number * rows)[fixed].sum()) + moving_rows * int(model.nbody)
    nconmax = int(number[fixed].sum()) + int((~fixed).sum())
    return Capacity(max(1, nconmax), max(1, constant_rows + touching))


def _contacts(first: int, second: int) -> int:
    """Returns the contacts that one pair of geoms of these types makes, at most."""
    if _SPHERE in (first, second):
        return 1
    return 2 if {first, second} <= {_PLANE, _CAPSULE} else _MOST


def _rows(model: mujoco.MjModel, pair: Any) -> int:
    """Counts the constraint rows of one contact of the pair."""
    condim = int(model.geom_condim[pair].max())
    if condim == 1 or model.opt.cone == mujoco.mjtCone.mjCONE_ELLIPTIC:
        return condim
    return 2 * (condim - 1)
