"""What can go wrong in a role.

RoleError
+-- NotFiniteError    the environment paid or showed NaN or infinity
+-- DivergedError     a loss is not finite any more
+-- CheckpointError   a checkpoint cannot be written or read
+-- RoleLoadError     a role class named in the config cannot be had
+-- ContextError      a role asked for something its GMI does not have
"""

from __future__ import annotations


class RoleError(RuntimeError):
    """Something a role could not do."""


class NotFiniteError(RoleError):
    """The environment gave NaN or infinity; names the environment and the step."""

    def __init__(self, what: str, env_index: int, step: int, iteration: int) -> None:
        super().__init__(what, env_index, step, iteration)
        self.what, self.env_index, self.step, self.iteration = what, env_index, step, iteration

    def __str__(self) -> str:
        return (
            f"{self.what} of environment {self.env_index} is not finite at step {self.step} of "
            f"iteration {self.iteration}; a policy cannot learn from it. Training stopped, the "
            "last checkpoint is kept. Look at the environment's reward and physics "
            "(a smaller time step, clipped actions), then go on with --resume."
        )


class DivergedError(RoleError):
    """A loss, the same on all GMIs, is NaN or infinite; `losses` has them all."""

    def __init__(self, losses: dict[str, float]) -> None:
        super().__init__(losses)
        self.losses = losses

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {value:g}" for name, value in self.losses.items())
        return (
            f"training diverged: {shown}. The last checkpoint is kept. Lower "
            "algorithm.learning_rate, value_coef or reward_scale, and begin anew or resume."
        )


class CheckpointError(RoleError):
    """A checkpoint that cannot be written, or is torn, foreign or of another layout."""


class RoleLoadError(RoleError):
    """A `module:Class` that does not import or is not a DRL_role."""


class ContextError(RoleError):
    """A role asked for a GMI, a group or a peer that its layout does not have."""
