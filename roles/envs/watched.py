"""Holds one environment of Gymnasium's to its spaces, and says which of the batch broke them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Space, Tuple

from .errors import EnvError, EnvRaised
from .flatten import part_at
from .spaces import Path, leaves

_SHOWN: Final = 60  # characters of what came


class WatchedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes on what an environment gives; EnvError where that is not what its spaces say.

    The error names the environment by its `number` in the batch, its seed and step. It has one
    argument, as Gymnasium's workers hand errors on by their class and text.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], env_id: str, number: int) -> None:
        super().__init__(env)
        self._env_id, self._number = env_id, number
        self._seed: int | None = None
        self._episode = self._step = 0
        # The parts of the last observation that was checked: one of the same kinds fits as well.
        self._fitting: list[tuple[Path, Any]] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._seed = self._seed if seed is None else seed
        self._episode, self._step = self._episode + 1, 0
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except Exception as error:
            raise self._env_error("reset", error) from error
        if not self._fits(observation):
            self._check_observation(observation, "reset")
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            raise self._env_error("step", error) from error
        if not self._fits(observation):
            self._check_observation(observation, "step")
        if type(reward) is not float:
            reward = self._number_of("reward", reward)
        if type(terminated) is not bool:
            terminated = bool(self._number_of("terminated", terminated))
        if type(truncated) is not bool:
            truncated = bool(self._number_of("truncated", truncated))
        return observation, reward, terminated, truncated, info

    def _fits(self, observation: Any) -> bool:
        """Tells whether it is of the kind of one that was looked at; quick, for every step."""
        if self._fitting is None:
            return False
        for path, fitting in self._fitting:
            try:
                part = part_at(observation, path) if path else observation
            except (KeyError, IndexError, TypeError):
                return False
            if type(part) is not type(fitting):
                return False
            if type(part) is np.ndarray and (
                part.shape != fitting.shape or part.dtype is not fitting.dtype
            ):
                return False
        return True

    def _check_observation(self, observation: Any, what: str) -> None:
        if broken := difference(self.env.observation_space, observation):
            raise self._mismatch(what, *broken)
        parts = [(p, part_at(observation, p)) for p, _ in leaves(self.env.observation_space)]
        are_plain = all(isinstance(part, np.ndarray | np.generic | int) for _, part in parts)
        self._fitting = parts if are_plain else None

    def _number_of(self, name: str, given: Any) -> float:
        """Returns what is one number, also in an array of one."""
        array = np.empty(0) if isinstance(given, Sequence) else np.asarray(given)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise self._mismatch("step", f"{name} {_shown(given)}", "one number")
        return float(array.item())

    def _mismatch(self, what: str, given: str, expected: str) -> EnvError:
        return EnvError(
            f"env {self._env_id}: {self.which}: its {what} gave {given}; must be {expected}, at "
            "every reset and step. Mend the environment, or its spaces."
        )

    def _env_error(self, what: str, error: Exception) -> Exception:
        if isinstance(error, MemoryError):
            return error
        return EnvError(str(EnvRaised.of(f"{self._env_id}: {self.which}", what, error)))

    @property
    def which(self) -> str:
        """Says which of the batch it is, by its seed, and where it stands."""
        seeded = "" if self._seed is None else f" (seed {self._seed})"
        step = f", step {self._step}" if self._step else ""
        return f"environment {self._number}{seeded}, episode {self._episode}{step}"


def difference(space: Space[Any], given: Any, path: str = "") -> tuple[str, str] | None:
    """Returns what was given and what its space says; None if a batch of these takes it.

    The range of numbers is not looked at.
    """
    name = f"observation{path}" if path else "an observation"
    if isinstance(space, Dict | Tuple):
        parts: dict[Any, Space[Any]] = dict(
            space.spaces if isinstance(space, Dict) else enumerate(space.spaces)
        )
        keys = given if isinstance(given, Mapping) else range(_length(given))
        if missing := [key for key in parts if key not in keys]:
            without = f"{name} {_shown(given)}, without {missing[0]!r}"
            return without, f"one with {', '.join(map(repr, parts))}"
        differences = (difference(part, given[k], f"{path}[{k!r}]") for k, part in parts.items())
        return next((fault for fault in differences if fault), None)
    try:
        array = np.asarray(given)
    except ValueError:  # lists of several lengths
        return f"{name} {_shown(given)}", f"of {space}"
    shape = space.shape or ()
    if array.shape != shape:
        return f"{name} of shape {list(array.shape)}", f"of shape {list(shape)}"
    if not np.can_cast(array.dtype, space.dtype or array.dtype, "same_kind"):
        return f"{name} of {array.dtype}", f"of {space.dtype}"
    return None


def _length(given: Any) -> int:
    return len(given) if isinstance(given, Sequence) and not isinstance(given, str) else 0


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
