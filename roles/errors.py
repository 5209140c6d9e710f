"""Defines the errors of roles.

RoleError
+-- NotFiniteError    the environment paid or showed NaN or infinity
+-- DivergedError     a loss is not finite any more
+-- PriorityError     a loss gave a priority that none can be drawn by
+-- CaptureError      work on a GPU cannot be captured as a CUDA graph
+-- SetUpTimeout      a GMI takes too long to make its environments
+-- CheckpointError   a checkpoint cannot be written or read
+-- RoleLoadError     a role class named in the config cannot be had
+-- PolicyError       what a role's make_policy returned is no policy
+-- ContextError      a role asked for something its GMI does not have
+-- EvaluatorLate     no evaluator has answered in time
+-- SampleLost        an evaluator was killed after it had sampled
"""

from __future__ import annotations

from gmi_drl.errors import GmiDrlError


class RoleError(GmiDrlError, RuntimeError):
    """Something a role could not do."""

    told_alone = True  # the text says all; a traceback adds nothing for who reads it


class NotFiniteError(RoleError):
    """The environment gave NaN or infinity; names the environment and the step."""

    def __init__(
        self, env_id: str, what: str, env_index: int, seed: int | None, step: int, iteration: int
    ) -> None:
        super().__init__(env_id, what, env_index, seed, step, iteration)
        self.env_id, self.what, self.env_index, self.seed = env_id, what, env_index, seed
        self.step, self.iteration = step, iteration

    def __str__(self) -> str:
        seeded = "" if self.seed is None else f" (seed {self.seed})"
        return (
            f"env {self.env_id}: {self.what} of environment {self.env_index}{seeded} is not finite "
            f"at step {self.step} of iteration {self.iteration}; a policy cannot learn from it. "
            "Training stopped; checkpoints are kept. Look at the environment's reward and physics "
            "(a smaller time step, clipped actions), then go on with --resume, or begin anew."
        )


class DivergedError(RoleError):
    """A loss, the same on all GMIs, is NaN or infinite; `losses` has them all."""

    def __init__(self, losses: dict[str, float]) -> None:
        super().__init__(losses)
        self.losses = losses

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {value:g}" for name, value in self.losses.items())
        value = ", value_coef" if "value_loss" in self.losses else ""
        return (
            f"training diverged: {shown}. Checkpoints are kept. Lower "
            f"algorithm.learning_rate{value} or reward_scale, and begin anew or resume."
        )


class PriorityError(RoleError):
    """A priority that is NaN, infinite or negative; names the environment and step of its row."""

    def __init__(self, priority: float, env_index: int, step: int) -> None:
        super().__init__(priority, env_index, step)
        self.priority, self.env_index, self.step = priority, env_index, step

    def __str__(self) -> str:
        return (
            f"the loss gave priority {self.priority:g} to step {self.step} of environment "
            f"{self.env_index} in the replay; priorities must be finite, and 0 or more. Training "
            "stopped; checkpoints are kept. Where the loss diverged lower algorithm.learning_rate "
            "or reward_scale, else give the error's absolute value in Losses.extras['priorities']."
        )


class CaptureError(RoleError):
    """Work that cannot be captured as a CUDA graph: which, and what it did wrong."""

    def __init__(self, work: str, reason: str) -> None:
        super().__init__(work, reason)
        self.work, self.reason = work, reason

    def __str__(self) -> str:
        return (
            f"{self.work} cannot be captured as a CUDA graph: {self.reason}. Captured work "
            "launches the same kernels each time, reads no tensor's value in Python and copies "
            "nothing from the host. Change that (a network, a loss or an environment of your own), "
            "or set run.capture: false (of steps of adapter warp env.options.capture: false), "
            "which launches every kernel from Python."
        )


class SetUpTimeout(RoleError):
    """GMI `gmi_id` has not made its environments and all else that it begins with in time."""

    def __init__(self, gmi_id: int, timeout_s: float) -> None:
        super().__init__(gmi_id, timeout_s)
        self.gmi_id, self.timeout_s = gmi_id, timeout_s

    def __str__(self) -> str:
        return (
            f"gmi {self.gmi_id} was not set up after {self.timeout_s:g} s, and a run begins when "
            f"all its GMIs are. logs/gmi{self.gmi_id}.log may tell what it was at: making its "
            "environments, most likely, or compiling their kernels. Use fewer GMIs or a smaller "
            "env.num_env, or launch again if what was compiled so far is kept."
        )


class CheckpointError(RoleError):
    """A checkpoint that cannot be written, or is torn, foreign or of another layout."""

    command_exit_code = 2  # of a command that is told to use it


class RoleLoadError(RoleError):
    """A `module:Class` that does not import or is not a DRL_role."""

    command_exit_code = 2


class PolicyError(RoleError):
    """The result of `maker` (MyTrainer.make_policy) is no policy; `faults` has every reason.

    `base` is the class that has all that it lacks.
    """

    def __init__(self, maker: str, kind: str, faults: list[str], base: str) -> None:
        super().__init__(maker, kind, faults, base)
        self.maker, self.kind, self.faults, self.base = maker, kind, faults, base

    def __str__(self) -> str:
        listed = "".join(f"\n  - {fault}" for fault in self.faults)
        return (
            f"{self.maker} returned a {self.kind} that cannot be trained:{listed}\n"
            f"Derive it from {self.base}, which has all of it, or write it as "
            'docs/writing-a-role.md does under "A policy of your own".'
        )


class ContextError(RoleError):
    """A role asked for a GMI, a group or a peer that its layout does not have."""

    told_alone = False  # which line of the role asked is in the traceback


class EvaluatorLate(RoleError):
    """No evaluator has answered in time."""


class SampleLost(RoleError):
    """An evaluator was killed after it had sampled, and has nothing to differentiate."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"evaluator {self.number} was killed, and what it had sampled is lost"
