"""Fatal faults of a GPU: what they look like in a process, and how it ends because of one.

After an illegal access, a fault of the hardware, or (under MPS) a fatal fault of another client,
CUDA is of no more use in the process: it ends, with an exit code of its own, and a new one takes
its place where the run allows it. Tested with doubles: not yet run on hardware.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

DEVICE_FAULT: Final = 86  # exit code of a GMI whose process can use its GPU no more


def is_device_fault(error: BaseException) -> bool:
    """Whether CUDA is lost to this process after `error`. Out of memory is no such fault."""
    torch = sys.modules.get("torch")
    if torch is None or isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    if (kind := getattr(torch, "AcceleratorError", None)) and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and str(error).startswith("CUDA error")


def leave_if_faulted(error: BaseException) -> None:
    """Ends this process, with the traceback in its log, if `error` is a fatal fault of its GPU.

    At once, as a kill would: whatever waits for the GPU on the way out might wait for ever.
    """
    if is_device_fault(error):
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(DEVICE_FAULT)
