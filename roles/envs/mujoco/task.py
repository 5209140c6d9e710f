"""Defines what a MuJoCo task adds to physics: observation, reward, episode end, first state.

Equations of Gymnasium's tasks are its own (gymnasium/envs/mujoco/*_v5.py), in its order of
operations, over a leading axis of N environments: in float64 they give its numbers bit for bit,
except where NumPy sums a dot product through BLAS or squares a single number by pow().
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import mujoco  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from .arrays import NUMPY, Arrays

Array = NDArray[np.float64]
Fields = Mapping[str, Array]  # name -> [N, ...], flattened

INTEGRATORS = {
    "euler": mujoco.mjtIntegrator.mjINT_EULER,
    "rk4": mujoco.mjtIntegrator.mjINT_RK4,
    "implicit": mujoco.mjtIntegrator.mjINT_IMPLICIT,
    "implicitfast": mujoco.mjtIntegrator.mjINT_IMPLICITFAST,
}


@dataclass(frozen=True, kw_only=True)
class PhysicsTaskOptions:
    """Holds the options of every task; its own have Gymnasium's names, meanings and defaults."""

    xml_file: str
    frame_skip: int
    integrator: str | None = None  # other physics than Gymnasium's: compare with nothing else
    on_unstable: str = "terminate"  # or "raise": see MujocoVecEnv

    def compile(self, path: Path) -> mujoco.MjModel:
        """Returns the model that simulates the task, made of the file of `xml_file`."""
        return mujoco.MjModel.from_xml_path(str(path))

    def faults(self, where: str) -> list[str]:
        faults = []
        if self.frame_skip < 1:
            faults.append(f"{where}: frame_skip={self.frame_skip}; must be at least 1. Use 1.")
        if self.integrator is not None and self.integrator not in INTEGRATORS:
            faults.append(
                f"{where}: integrator={self.integrator!r}; known: {', '.join(INTEGRATORS)}. "
                "Leave it out for the model's own."
            )
        if self.on_unstable not in ("terminate", "raise"):
            faults.append(
                f"{where}: on_unstable={self.on_unstable!r}; must be terminate or raise. "
                "Leave it out for terminate."
            )
        return faults


O = TypeVar("O", bound=PhysicsTaskOptions)  # noqa: E741


class Task(abc.ABC, Generic[O]):
    """Defines a task on MuJoCo's physics over N environments, without the state of an episode.

    What an environment keeps beside physics (a goal, a command) is a row of the field `memory`.
    Arrays are NumPy's, or another kind's for the `xp` given (the annotations name NumPy's); a task
    that is to run there too calls nothing of NumPy's itself.
    """

    Options: ClassVar[type[Any]]
    max_episode_steps: int = 0  # 0: as in Gymnasium's registry
    observation_size: int
    rne_post: bool = False  # reads cfrc_ext, which only mj_rnePostConstraint computes
    velocity_noise: str = "uniform"  # of first states; or "normal"
    memory_size: int = 0  # numbers in a row of the field `memory`

    def __init__(self, model: mujoco.MjModel, options: O, xp: Arrays = NUMPY) -> None:
        self.model, self.options, self.xp = model, options, xp
        self.dt = model.opt.timestep * options.frame_skip
        data = mujoco.MjData(model)
        self.init_qpos: Array = xp.constant(data.qpos.copy())
        self.init_qvel: Array = xp.constant(data.qvel.copy())
        self.prepare()

    def prepare(self) -> None:
        """Computes what the task's equations take of the model and the options."""

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        """Returns views of what the task reads of `data`; gathered flat into [N, size] fields."""
        return {"qpos": data.qpos, "qvel": data.qvel}

    @abc.abstractmethod
    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        """Writes observations [N, observation_size] of the given fields."""

    @abc.abstractmethod
    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Returns reward [N] and terminated [N] of the step that led to `f`."""

    def position(self, f: Fields) -> Array:
        """Returns what [N, k] the next step's `evaluate` gets as `before` (default: nothing)."""
        return f["qpos"][:, :0]

    def sample_memory(self, rng: np.random.Generator) -> Array:
        """Returns an episode's first `memory` [memory_size], drawn after its first state."""
        raise NotImplementedError("a task with a memory says what is in it")

    def resample_mask(self, f: Fields) -> NDArray[np.bool_] | None:
        """Returns which memories [N] are sampled anew within the episode; None: none, ever.

        Called after `evaluate`; `observe` sees the new memory.
        """
        return None

    def first_activation(self, qpos: Array) -> Array | None:
        """Returns the activations [na] of an episode that starts from qpos; None: zeros."""
        return None

    def first_state(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Returns qpos and qvel that an episode starts from (default: as Gymnasium's family)."""
        scale: float = self.options.reset_noise_scale  # type: ignore[attr-defined]
        qpos = self.init_qpos + rng.uniform(low=-scale, high=scale, size=self.model.nq)
        if self.velocity_noise == "uniform":
            qvel = self.init_qvel + rng.uniform(low=-scale, high=scale, size=self.model.nv)
        else:
            qvel = self.init_qvel + scale * rng.standard_normal(self.model.nv)
        return qpos, qvel
