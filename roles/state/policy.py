"""Reading the policy of a checkpoint, to act with it and not to train it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gmi_drl.roles.errors import CheckpointError
from gmi_drl.roles.policies.description import compare
from gmi_drl.roles.policies.normalize import Normalizers

from . import checkpoint

_LEARNERS: Final = {"normalize_value"}  # of a policy's description: what acting does not need


def load_policy(
    path: Path, network: nn.Module, normalizers: Normalizers, description: dict[str, Any]
) -> str:
    """Make `network`, whose policy `description` is of, that of a checkpoint or a run's newest.

    Returns what to warn of. CheckpointError unless it is whole, and of a policy like this one.
    """
    found = checkpoint.find(path)
    recorded = found.manifest.get("policy") or {}
    # Nobody asks for a value.
    warning = compare(
        found,
        {**description, **{key: recorded[key] for key in _LEARNERS & recorded.keys()}},
        (
            f"Serve it with the env and algorithm sections of its run: gmi-drl launch {path} --set "
            "mode=serving takes them."
        ),
    )
    shared = found.load("shared")
    parameters = [p for _, p in sorted(network.named_parameters())]
    stored, mine = shared["parameters"], sum(p.numel() for p in parameters)
    if stored.numel() != mine:
        raise CheckpointError(
            f"run.policy: {found.folder} holds a policy of {stored.numel():,} parameters; this "
            f"config's has {mine:,}. Use the env and algorithm sections of the run that wrote it."
        )
    with torch.no_grad():
        parts = stored.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))
    statistics, observations = shared.get("observation_normalizer"), normalizers.observations
    if (observations is None) != (statistics is None):
        raise CheckpointError(
            f"run.policy: {found.folder} was trained with normalize_observation "
            f"{str(statistics is not None).lower()}. Set algorithm.normalize_observation so."
        )
    if observations is not None:
        observations.load_state_dict(statistics)
    return warning
