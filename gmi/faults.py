"""Fatal faults of a GPU: how a process finds that it has lost CUDA, and how it ends because of it.

After an illegal access, a fault of the hardware, or (under MPS) a fatal fault of another client,
CUDA is of no more use in the process: it ends, with an exit code of its own, and a new one takes
its place where the run allows it. Tested with doubles.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

DEVICE_FAULT: Final = 86  # exit code of a GMI whose process can use its GPU no more


def device_is_lost() -> bool:
    """Whether CUDA is of no more use in this process; False where torch has not started it.

    The device is asked, by a question that does not wait for it: an exception may come from any
    library in any words, and one of a call that was merely wrong leaves CUDA as it was.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.current_stream().query()
    except Exception:  # each call gives the error of the fault from now on
        return True
    return False


def leave_if_faulted(error: BaseException) -> None:
    """Ends this process, with the traceback of `error` in its log, if it has lost its GPU.

    At once, as a kill would: whatever waits for the GPU on the way out might wait for ever.
    """
    if device_is_lost():
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(DEVICE_FAULT)
