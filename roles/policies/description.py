"""Describes a policy as a checkpoint does, compares it with a config's, and loads it to act."""

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
_LEARNERS: Final = {"normalize_value"}  # entries that do not matter to acting


def described(policy: Any, env: VecEnv, normalizers: Normalizers) -> dict[str, Any]:
    """Returns spaces, normalisers, parameters' shapes, and what `policy.describe()` gives."""
    settings = policy.describe() if hasattr(policy, "describe") else {}
    try:
        description = dict(json.loads(json.dumps(settings)))
    except (TypeError, ValueError) as error:
        raise RoleError(
            f"{type(policy).__name__}.describe() gave {settings!r}; must be a dict that JSON can "
            f"keep ({error}). Use numbers, texts and lists."
        ) from None
    return {
        "observation space": _space_text(env.observation_space),
        "action space": _space_text(env.action_space),
        "normalize_observation": normalizers.observations is not None,
        "normalize_value": normalizers.values is not None,
        **description,
        **{f"parameter {name}": list(p.shape) for name, p in sorted(policy.named_parameters())},
    }


def compare(found: Checkpoint, mine: dict[str, Any], remedy: str) -> None:
    """Raises CheckpointError, with all differences, unless `found` has the policy of `mine`."""
    saved = found.manifest.get("policy", {})
    differences = [
        f"{key}: checkpoint {_entry_text(saved, key)}; config {_entry_text(mine, key)}"
        for key in {**saved, **mine}
        if key not in saved or key not in mine or saved[key] != mine[key]
    ]
    if not differences:
        return
    num_more = len(differences) - _MOST_NAMED
    lines = [*differences[:_MOST_NAMED], *([f"and {num_more} more"] if num_more > 0 else [])]
    run = " ".join(str(found.manifest.get(key, "?")) for key in ("algorithm", "environment"))
    raise CheckpointError(
        f"{found.folder} (of {run}) holds another policy than this config makes:\n  "
        + "\n  ".join(lines)
        + f"\n{remedy}"
    )


def load_policy(
    path: Path, network: nn.Module, normalizers: Normalizers, description: dict[str, Any]
) -> None:
    """Loads a checkpoint, or the newest of a run, into `network`, which `description` describes.

    CheckpointError unless it is whole, and of a policy like this one.
    """
    checkpoint = find(path, ["shared"])
    recorded = checkpoint.manifest.get("policy", {})
    unused = {key: recorded[key] for key in _LEARNERS & recorded.keys()}
    remedy = (
        f"Serve it with the env and algorithm sections of its run: gmi-drl launch {path} --set "
        "mode=serving takes them."
    )
    compare(checkpoint, {**description, **unused}, remedy)
    shared, flat = checkpoint.load("shared"), FlatParameters(network)
    try:
        with torch.no_grad():
            flat.unpack(shared["parameters"], flat.data)
    except CheckpointError as error:
        raise CheckpointError(f"run.policy: {checkpoint.folder} holds {error}") from None
    statistics, observations = shared.get("observation_normalizer"), normalizers.observations
    if (observations is None) != (statistics is None):
        raise CheckpointError(
            f"run.policy: {checkpoint.folder} was trained with normalize_observation "
            f"{str(statistics is not None).lower()}. Set algorithm.normalize_observation so."
        )
    if observations is not None:
        observations.load_state_dict(statistics)


def _entry_text(description: dict[str, Any], key: str) -> str:
    if key not in description:
        return "none"
    value = description[key]
    return value if isinstance(value, str) else json.dumps(value)


def _space_text(space: spaces.Space[Any]) -> str:
    """Returns a space as text, the same whichever adapter makes the environment."""
    if isinstance(space, spaces.Box):
        kind = "numbers" if np.issubdtype(space.dtype, np.floating) else str(space.dtype)
        return f"Box{list(space.shape)} of {kind}, {_bounds(space.low)} to {_bounds(space.high)}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n}) from {space.start}"
    return str(space)


def _bounds(values: NDArray[Any]) -> str:
    """Returns bounds as text: one number if all are equal, and float64 as float32."""
    flat = np.ravel(values)
    if flat.size and (flat == flat[0]).all():
        return f"{flat[0]:.6g}"
    texts = [f"{value:.6g}" for value in flat.tolist()]
    if len(texts) > _MOST_NUMBERS:
        return f"{len(texts)} bounds with checksum {zlib.crc32(' '.join(texts).encode()):08x}"
    return f"[{' '.join(texts)}]"
