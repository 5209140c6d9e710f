"""Asks torch about itself and the GPUs, in a process of its own.

The process that asks imports no torch, and starts no CUDA.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from datetime import timedelta
from typing import Final, NamedTuple

from gmi_drl.comm.errors import CommError

DEADLINE: Final = timedelta(seconds=120)  # it is read from the disk, and may start CUDA
# What NVML counts says nothing of CUDA: a torch too new for the driver, or without kernels for the
# GPU, counts it too. So something is computed.
_ASK: Final = """
import json, sys, torch
seen, error = torch.cuda.device_count(), ""
if torch.version.cuda and seen and sys.argv[1:] == ["compute"]:
    try:
        (torch.ones(1, device="cuda") + 1).item()
    except Exception as found:
        error = str(found) or repr(found)
nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
print(json.dumps([torch.__version__, torch.version.cuda, nccl, seen, error]))
"""


class TorchFacts(NamedTuple):
    """The facts of the torch that is installed."""

    version: str
    cuda: str | None  # that it is built for; None: none
    nccl: tuple[int, ...] | None  # None: without
    num_gpus: int  # that it counts
    error: str = ""  # of computing on the first of them, if that was asked for


@functools.cache
def ask_torch(compute: bool = False, deadline: timedelta = DEADLINE) -> TorchFacts:
    """Asks once in the life of this process; takes seconds. `compute`: on the first GPU, too.

    CommError when torch cannot be imported, or has not answered by the deadline.
    """
    limit_s = deadline.total_seconds()
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-c", _ASK, *(["compute"] if compute else [])],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CommError(
            f"torch has not answered after {limit_s:g} s. Try `import torch`; look at nvidia-smi: "
            "a GPU that hangs has to be reset."
        ) from None
    try:
        version, cuda, nccl, num_gpus, error = json.loads(process.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last_line = process.stderr.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise CommError(f"torch cannot be asked: {last_line[0]}. Install it anew.") from None
    first_line = error.strip().partition("\n")[0]
    return TorchFacts(version, cuda, None if nccl is None else tuple(nccl), num_gpus, first_line)
