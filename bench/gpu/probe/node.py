"""Checks that a node has what GMIs on a GPU need: the first check of `probe.py`."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import resource
import shutil
import sys
from pathlib import Path
from typing import Final

from gmi_drl.gmi.backends.mps.control import CONTROL, SERVER
from gmi_drl.gmi.discover import look

from .clients import PACKAGES
from .harness import Check

# Where MPS's programs may be when they are not on PATH: containers get the driver's files here.
FOLDERS: Final = (
    "/usr/local/nvidia/bin", "/usr/bin", "/usr/local/bin", "/usr/local/cuda*/bin", "/opt/*/bin",
    "/opt/nvidia/*/bin",
)  # fmt: skip
_NEEDED: Final = ("torch", "numpy", "cuda-bindings", "nvidia-ml-py")
_SHM_BYTES: Final = 64 << 20  # torch keeps counters of shared memory there


def node(check: Check) -> None:
    """Checks what this machine has; the rows say `export PATH` if MPS's programs are elsewhere."""
    machine, device = look(), check.device
    cuda = machine.cuda or check.topology.cuda
    version = None if cuda is None else ".".join(map(str, cuda))
    check.row(
        "driver", f"{machine.driver or 'unknown'}, CUDA {version or 'unknown'}",
        None if cuda is None else cuda >= (13, 0), expected="13.0 or newer",
        workaround="Green contexts need CUDA 13.0: use mps or direct, and a torch built for this "
        "driver's CUDA.",
    )  # fmt: skip
    check.row("python", sys.version.split()[0], None)
    for name in dict.fromkeys(PACKAGES.values()):
        installed = versions().get(name)
        check.row(
            name, installed or "not here",
            True if installed else False if name in _NEEDED else None,
            workaround=f"Install {name}; without a network from a pack (scripts/gpu-pack).",
        )  # fmt: skip
    _programs(check)
    shm = shutil.disk_usage("/dev/shm")
    check.row(
        "/dev/shm: MiB free of MiB", f"{shm.free >> 20} of {shm.total >> 20}",
        shm.free >= _SHM_BYTES, expected=f"{_SHM_BYTES >> 20} at least",
        workaround="mount -o remount,size=1g /dev/shm, or --shm-size of the container.",
    )  # fmt: skip
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    check.row("ulimit -l", "unlimited" if locked < 0 else f"{locked >> 10} KiB", None)
    processes = [
        f"pid {p.pid} ({p.kind}, {(p.mem_bytes or 0) >> 20} MiB)" for p in device.processes
    ]
    check.row(
        "processes of others", processes, not processes, expected="none",
        workaround="They disturb all figures: end them, or wait for their end.",
    )  # fmt: skip
    mode = device.compute_mode
    check.row(
        "compute mode", mode or "unknown", None if mode is None else mode == "default",
        expected="default",
        workaround="An exclusive GPU takes one process outside MPS: use mps, or have an "
        "administrator run nvidia-smi -c DEFAULT.",
    )  # fmt: skip
    check.row(
        "MIG mode", bool(device.mig_mode), not device.mig_mode, expected="off",
        workaround="Use backend mig, or have an administrator run nvidia-smi -mig 0.",
    )  # fmt: skip


@functools.cache
def versions() -> dict[str, str]:
    """Returns the versions of the packages that matter, as far as they are installed.

    cupy's package has another name for each version of CUDA.
    """
    installed = {
        re.sub(r"[-_.]+", "-", distribution.name or "").lower(): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    cupy = {name: version for name, version in installed.items() if name.startswith("cupy-cuda")}
    names = dict.fromkeys(PACKAGES.values())
    return {name: installed[name] for name in names if name in installed} | cupy


def _programs(check: Check) -> None:
    """Checks MPS's two programs, on PATH or elsewhere."""
    for name in (CONTROL, SERVER):
        path = shutil.which(name)
        folder = None if path else folder_of(name)
        if folder is None:
            workaround = (
                f"Install the driver's compute utilities (nvidia-compute-utils), or mount {name} "
                "into the container; without MPS measure with green and direct."
            )
        else:
            workaround = f'export PATH="$PATH:{folder}"'
        check.row(
            name, path or (folder and str(folder / name)), path is not None, expected="on PATH",
            workaround=workaround,
        )  # fmt: skip


def folder_of(name: str) -> Path | None:
    """Returns the first of `FOLDERS` that has a program of that name."""
    for pattern in FOLDERS:
        for folder in sorted(Path("/").glob(pattern.lstrip("/"))):
            if os.access(folder / name, os.X_OK):
                return folder
    return None
