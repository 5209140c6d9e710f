"""Starts JAX in a process that has a share of a machine.

What JAX must be told before it starts is told here, and only if the environment does not say it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.runtime.cache_files import cache_folder

_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
# Any of them set: the user has decided what JAX takes of a GPU's memory.
_MEMORY = (
    _PREALLOCATE,
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
)


started = False  # whether `jax_device` has started JAX: to ask JAX of its devices would start it


def jax_device(device: torch.device) -> Any:
    """Returns JAX's device for torch's, and starts JAX.

    Its pools of threads on the CPU are sized by the cores that this process has at its first call.
    What it compiles it keeps in $XDG_CACHE_HOME/gmi-drl, or where the environment says. Raises
    EnvSpecError where JAX has no such device.

    A process that has called this is not to be forked.
    """
    global started
    _bound_memory(device)
    jax = _imported(device)
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
    started = True
    try:
        return jax.local_devices(backend=device.type)[device.index or 0]
    except (RuntimeError, IndexError, AssertionError) as error:  # the last: none may start
        remedy = "Leave JAX_PLATFORMS unset, or name cpu in it, or use adapter: mujoco."
        if device.type == "cuda":
            major = str(torch.version.cuda).partition(".")[0]
            remedy = (
                f"pip install 'jax[cuda{major}]', leave JAX_PLATFORMS unset, or use adapter: warp."
            )
        reason = str(error).partition("\n")[0] or "no backend that it may use starts"
        raise EnvSpecError(
            f"env.adapter=mjx on {device}: JAX does not have that device ({reason}); it must "
            f"be one of JAX's, too. {remedy}"
        ) from error


def _bound_memory(device: torch.device) -> None:
    """Tells JAX to take of a GPU what it needs, up to the fraction that torch was told.

    By itself it takes three quarters at its start. On the CPU too: where somebody has imported JAX
    before, it may start the GPUs it finds.
    """
    if any(name in os.environ for name in _MEMORY):
        return
    os.environ[_PREALLOCATE] = "false"
    if device.type == "cuda":
        fraction = torch.cuda.get_per_process_memory_fraction(device)
        if fraction < 1:
            os.environ["XLA_CLIENT_MEM_FRACTION"] = f"{fraction:.4f}"


def _imported(device: torch.device) -> Any:
    """Imports jax; for the CPU alone if that is the device, as JAX starts all it finds."""
    cpu_only = (
        "jax" not in sys.modules
        and "JAX_PLATFORMS" not in os.environ
        and (device.type == "cpu" or not torch.cuda.is_available())
    )
    if cpu_only:
        os.environ["JAX_PLATFORMS"] = "cpu"  # read at import
    try:
        import jax
    finally:
        if cpu_only:
            del os.environ["JAX_PLATFORMS"]
    return jax
