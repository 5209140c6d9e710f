"""Describes a policy as a checkpoint does, compares it with a config's, and reads it to act."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import CheckpointError, RoleError
from gmi_drl.roles.state.checkpoint import Checkpoint, find

from .flat_parameters import FlatParameters
from .normalize import Normalizers

_MOST_NUMBERS: Final = 32  # of bounds that are written out
_MOST_NAMED: Final = 12  # differences that an error names
_LEARNERS: Final = {"normalize_value"}  # of a description: nobody who acts asks for a value


def described(policy: Any, env: VecEnv, normalizers: Normalizers) -> dict[str, Any]:
    """Returns spaces, normalisers, parameters' shapes, and what `policy.describe()` gives."""
    settings = policy.describe() if hasattr(policy, "describe") else {}
    try:
        plain = dict(json.loads(json.dumps(settings)))
    except (TypeError, ValueError) as error:
        raise RoleError(
            f"{type(policy).__name__}.describe() gave {settings!r}; must be a dict that JSON can "
            f"keep ({error}). Use numbers, texts and lists."
        ) from None
    return {
        "observation space": _text(env.observation_space),
        "action space": _text(env.action_space),
        "normalize_observation": normalizers.observations is not None,
        "normalize_value": normalizers.values is not None,
        **plain,
        **{f"parameter {name}": list(p.shape) for name, p in sorted(policy.named_parameters())},
    }


def compare(found: Checkpoint, mine: dict[str, Any], remedy: str) -> None:
    """Raises CheckpointError, with all differences, unless `found` has the policy of `mine`."""
    its = found.manifest.get("policy", {})
    differences = [
        f"{key}: checkpoint {_shown(its, key)}; config {_shown(mine, key)}"
        for key in {**its, **mine}
        if key not in its or key not in mine or its[key] != mine[key]
    ]
    if not differences:
        return
    more = len(differences) - _MOST_NAMED
    lines = [*differences[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]
    wrote = " ".join(str(found.manifest.get(key, "?")) for key in ("algorithm", "environment"))
    raise CheckpointError(
        f"{found.folder} (of {wrote}) holds another policy than this config makes:\n  "
        + "\n  ".join(lines)
        + f"\n{remedy}"
    )


def load_policy(
    path: Path, network: nn.Module, normalizers: Normalizers, description: dict[str, Any]
) -> None:
    """Make `network`, whose policy `description` is of, that of a checkpoint or a run's newest.

    CheckpointError unless it is whole, and of a policy like this one.
    """
    found = find(path)
    recorded = found.manifest.get("policy", {})
    needless = {key: recorded[key] for key in _LEARNERS & recorded.keys()}
    remedy = (
        f"Serve it with the env and algorithm sections of its run: gmi-drl launch {path} --set "
        "mode=serving takes them."
    )
    compare(found, {**description, **needless}, remedy)
    shared, flat = found.load("shared"), FlatParameters(network)
    try:
        with torch.no_grad():
            flat.unpack(shared["parameters"], flat.data)
    except CheckpointError as error:
        raise CheckpointError(f"run.policy: {found.folder} holds {error}") from None
    statistics, observations = shared.get("observation_normalizer"), normalizers.observations
    if (observations is None) != (statistics is None):
        raise CheckpointError(
            f"run.policy: {found.folder} was trained with normalize_observation "
            f"{str(statistics is not None).lower()}. Set algorithm.normalize_observation so."
        )
    if observations is not None:
        observations.load_state_dict(statistics)


def _shown(description: dict[str, Any], key: str) -> str:
    if key not in description:
        return "none"
    value = description[key]
    return value if isinstance(value, str) else json.dumps(value)


def _text(space: spaces.Space[Any]) -> str:
    """A space as text that is the same whichever adapter makes the environment."""
    if isinstance(space, spaces.Box):
        kind = "numbers" if np.issubdtype(space.dtype, np.floating) else str(space.dtype)
        return f"Box{list(space.shape)} of {kind}, {_bounds(space.low)} to {_bounds(space.high)}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n}) from {space.start}"
    return str(space)


def _bounds(values: NDArray[Any]) -> str:
    """One number where all are the same; float32 and float64 are told alike."""
    flat = np.ravel(values)
    if flat.size and (flat == flat[0]).all():
        return f"{flat[0]:.6g}"
    texts = [f"{value:.6g}" for value in flat.tolist()]
    if len(texts) > _MOST_NUMBERS:
        return f"{len(texts)} bounds with checksum {zlib.crc32(' '.join(texts).encode()):08x}"
    return f"[{' '.join(texts)}]"
