"""What a batch is made of, checked: options, model and device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mujoco  # type: ignore[import-untyped]
import torch

from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.mujoco.vec import load_model
from gmi_drl.roles.envs.options import parse_options


def prepare(
    kinds: Mapping[str, type[Any]], env_id: str, given: Mapping[str, Any], device: torch.device
) -> tuple[Any, mujoco.MjModel, torch.device]:
    """The options of `env_id` (of its dataclass in `kinds`), its compiled model, and the device
    with its index. Raises EnvSpecError with every fault."""
    options, faults = parse_options(kinds[env_id], given, f"env {env_id}")
    faults += options.faults(f"env {env_id}")
    if device.type not in ("cpu", "cuda"):
        faults.append(
            f"env {env_id}: device={device}; {options.adapter} runs on cpu and cuda. Use one of "
            "these."
        )
    if faults:
        raise EnvSpecError(faults)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return options, load_model(options), device
