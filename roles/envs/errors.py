"""What can go wrong with environments.

EnvError
+-- EnvSpecError         an id, adapter or option that cannot be; lists all faults found
+-- EnvActionError       an action of the wrong shape, or not finite
+-- UnstableSimulation   the physics of one environment blew up
+-- EnvStateError        a saved state that does not belong to these environments
"""

from __future__ import annotations

from collections.abc import Sequence


class EnvError(RuntimeError):
    """Something environments could not do."""


class EnvSpecError(EnvError, ValueError):
    """Environments that cannot be made as asked; `faults` has every reason."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__(list(faults))
        self.faults = list(faults)

    def __str__(self) -> str:
        return "\n".join(self.faults)


class EnvActionError(EnvError, ValueError):
    """An action that no environment of this batch can take."""


class UnstableSimulation(EnvError):
    """The physics of an environment left the finite numbers.

    Fields: env_id, env_index, step (of its episode), warning (MuJoCo's name of it).
    """

    def __init__(self, env_id: str, env_index: int, step: int, warning: str) -> None:
        super().__init__(env_id, env_index, step, warning)
        self.env_id, self.env_index, self.step, self.warning = env_id, env_index, step, warning

    def __str__(self) -> str:
        return (
            f"{self.env_id}: environment {self.env_index} became unstable at step {self.step} of "
            f"its episode ({self.warning}: not finite, or beyond 1e10). Make actions smaller or "
            "frame_skip lower, or set env.options.on_unstable: terminate to end such an episode."
        )


class EnvStateError(EnvError, ValueError):
    """A state that cannot be gone on from: of other environments, or where none can be had."""
