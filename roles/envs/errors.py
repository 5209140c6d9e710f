"""Defines the errors of environments.

EnvError
+-- EnvSpecError         an id, adapter or option that cannot be; lists all faults found
+-- EnvRaised            the code of an environment raised
+-- EnvActionError       an action of the wrong shape, or not finite
+-- UnstableSimulation   the physics of one environment blew up
+-- EnvStateError        a saved state that does not belong to these environments
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from typing import Any, Final

from gmi_drl.errors import GmiDrlError

_GIVES: Final = {
    "constructor": "Look there, and at env.options, which it is given.",
    "reset": "Look there; reset takes seed and options, and returns observation and info.",
    "step": "Look there; step returns observation, reward, terminated, truncated and info.",
    "reset of environment": "Look there; reset takes seed and options, and returns observations "
    "and infos by agent; where agents take turns, nothing.",
    "step of environment": "Look there; step takes actions by agent, and returns observations, "
    "rewards, terminations, truncations and infos by agent; where agents take turns it takes an "
    "action, and last returns observation, reward, termination, truncation and info.",
    "render": "Look there; with render_mode rgb_array it returns a picture.",
    "compute_reward": "Look there; it takes goals [B, ...], and returns rewards [B].",
    "close": "Look there; what was trained is not lost by that.",
    "wrapper": "A wrapper is called with the environments and its options.",
}


class EnvError(GmiDrlError, RuntimeError):
    """Tells something that environments could not do."""

    told_alone = True  # the text says all; a traceback adds nothing for who reads it


class EnvSpecError(EnvError, ValueError):
    """Tells that environments cannot be made as asked; `faults` has every reason."""

    command_exit_code = 2

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.faults = list(faults)

    def __str__(self) -> str:
        return "\n".join(self.faults)


class EnvRaised(EnvError):
    """Tells that an environment's constructor, reset, step, render or close (`what`) raised.

    Of environments of several agents it says which: step of environment 3.
    """

    def __init__(self, env_id: str, what: str, said: str, place: str) -> None:
        super().__init__(env_id, what, said, place)
        self.env_id, self.what, self.said, self.place = env_id, what, said, place

    @classmethod
    def of(cls, env_id: str, what: str, error: Exception) -> EnvRaised:
        """Returns the error that tells of `error`, with the line of code that raised it."""
        *_, frame = traceback.extract_tb(error.__traceback__)
        said = f"{type(error).__name__}: {error}".strip(": ")
        return cls(env_id, what, said, f"{frame.filename}, line {frame.lineno}")

    def __str__(self) -> str:
        text = f"env {self.env_id}: its {self.what} raised {self.said}"
        return f"{text} ({self.place}). {_GIVES[self.what.rstrip(' 0123456789')]}"


def env_error(env_id: str, what: str, error: Exception) -> Exception:
    """Returns what to raise for `error`: an EnvRaised, or itself where it says what it is."""
    is_told = isinstance(error, EnvError | MemoryError)
    return error if is_told else EnvRaised.of(env_id, what, error)


class EnvActionError(EnvError, ValueError):
    """Tells of an action that no environment of this batch can take."""

    @classmethod
    def of_shape(cls, env_id: str, shape: Sequence[int], needed: Sequence[int]) -> EnvActionError:
        return cls(
            f"env {env_id}: action has shape {list(shape)}; must be {list(needed)} (num_env "
            "first). Reshape it, or make as many environments as the policy acts for."
        )

    @classmethod
    def not_finite(cls, env_id: str, action: Any) -> EnvActionError:
        """Names the first environment whose action [N, ...], a tensor or array, is not finite."""
        rows = action.reshape(len(action), -1).tolist()
        index = next(i for i, row in enumerate(rows) if not all(map(math.isfinite, row)))
        return cls(
            f"env {env_id}: the action of environment {index} is {action[index].tolist()}; actions "
            "must be finite. The policy has diverged: lower its learning rate, or clip its "
            "gradients."
        )


class UnstableSimulation(EnvError):
    """Tells that the physics of an environment left the finite numbers.

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
    """Tells that a state cannot be gone on from: of other environments, or where none is had."""
