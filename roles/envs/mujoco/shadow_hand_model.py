"""The model of ShadowHand-v0: mujoco-mjx's hand, 20 servos, and a cube over its palm.

What is changed in the hand:

- A finger's two outer joints (J1, J2) are pulled together by one tendon with one servo, as in the
  real hand: 20 servos in place of 24. The thumb's are five servos, as before.
- Every servo's control is -1 to 1 over its range.
- The hand's bodies do not weigh (Isaac Gym's task switches their gravity off).
- Collision meshes (the fingertips') become the capsules that MuJoCo fits to them: a GPU finds the
  contacts of a capsule many times faster than those of a mesh, and makes less room for them.
- Time step, integrator, cones and the solver's iterations are those below.
"""

from __future__ import annotations

from pathlib import Path

import mujoco  # type: ignore[import-untyped]

from .robots import act_around, solve_to_the_end, without_visuals

HAND_JOINTS = 24
COUPLED = ("FF", "MF", "RF", "LF")
CUBE_HALF_M, CUBE_MASS_KG = 0.0325, 0.1
CUBE_START = (0.32, 0.0, 0.1)  # m, of its centre: over the palm, and the fingers wherever they are
GOAL = (0.32, 0.0, 0.06)  # 4 cm below, as in Isaac Gym: about where the cube lies
TIME_STEP_S = 1 / 240


def build(path: Path) -> mujoco.MjModel:
    """The compiled model from the file of the hand."""
    spec = mujoco.MjSpec.from_file(str(path))
    without_visuals(spec)
    for numeric in list(spec.numerics):
        spec.delete(numeric)  # how few contacts MJX is to keep
    for body in spec.bodies:
        body.gravcomp = 1
    for geom in spec.geoms:
        if geom.type == mujoco.mjtGeom.mjGEOM_MESH:
            geom.type = mujoco.mjtGeom.mjGEOM_CAPSULE
    for finger in COUPLED:
        _couple(spec, finger)
    for actuator in spec.actuators:
        low, high = actuator.ctrlrange
        act_around(actuator, (low + high) / 2, (high - low) / 2)
    cube = spec.worldbody.add_body(name="cube", pos=CUBE_START)
    cube.add_freejoint()
    cube.add_geom(
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=[CUBE_HALF_M] * 3,
        mass=CUBE_MASS_KG,
        contype=7,  # meets every part of the hand, whose masks differ
        conaffinity=0,
        condim=3,
    )
    solve_to_the_end(spec)
    option = spec.option
    option.timestep = TIME_STEP_S
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    option.impratio = 1  # at the hand's own 10, where the solver stops early the cube bursts away
    model = spec.compile()
    assert model.nu == 20
    assert model.nq == HAND_JOINTS + 7
    return model


def _couple(spec: mujoco.MjSpec, finger: str) -> None:
    """One servo on the sum of the two outer joints' angles."""
    tendon = spec.add_tendon(name=f"rh_{finger}J0")
    for joint in (f"rh_{finger}J2", f"rh_{finger}J1"):
        tendon.wrap_joint(joint, 1)
    servo, other = spec.actuator(f"rh_A_{finger}J2"), spec.actuator(f"rh_A_{finger}J1")
    servo.name = f"rh_A_{finger}J0"
    servo.trntype = mujoco.mjtTrn.mjTRN_TENDON
    servo.target = tendon.name
    spec.delete(other)
