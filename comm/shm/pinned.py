"""Page-locks memory of the host that a GPU copies from and to, and that is not one's own.

Shared memory is registered with CUDA in each process that copies, so that copies need not be waited
for one by one. Where the driver refuses, they are slower, not wrong.
"""

from __future__ import annotations

import contextlib
import mmap
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor

from gmi_drl.runtime.store.alignment import round_up

_warned = False  # by this process, that memory is not pinned


def is_pinned(memory: Tensor) -> bool:
    """Tells whether copies of `memory` may be left under way; asks CUDA only if it runs.

    (To ask torch alone would start CUDA on a machine with a GPU, in a run on its cores too.)
    """
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started and memory.is_pinned()


class PinnedMemory:
    """`nbytes` of `memory` from its beginning, for copies from and to the GPU `device`.

    It stays registered, and mapped, until `close`, or until this object goes. `why_not` says why
    it is not page-locked; "" if it is.
    """

    def __init__(
        self, memory: memoryview, device: torch.device, what: str, nbytes: int | None = None
    ) -> None:
        self._device, self.why_not = device, ""
        self._event: torch.cuda.Event | None = None
        nbytes = memory.nbytes if nbytes is None else nbytes
        nbytes = round_up(nbytes, mmap.PAGESIZE)  # whole pages, as are mapped
        address = torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(cudart.cudaHostRegister(address, nbytes, 0))
        self._end: Any = None
        if error:
            self.why_not = (
                f"cudaHostRegister of {nbytes} bytes: error {error}; {what} copied through "
                "memory that is not pinned. Raise the limit of locked memory (ulimit -l)."
            )
            _warn_once(self.why_not)
            _forget_last_error(device)
            return
        # As long as it is registered it stays mapped. CUDA may be gone when the process ends.
        self._end = weakref.finalize(self, _unregister, cudart, address, memory)
        self._end.atexit = False

    def wait(self) -> None:
        """Returns when the GPU has done what its current stream was given so far."""
        if self._event is None:  # blocking: GMIs share few cores, so none spins on one
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event = self._event
        event.record(torch.cuda.current_stream(self._device))
        event.synchronize()

    def close(self) -> None:
        """Waits for the GPU, and registers it no longer. Calling it again is fine."""
        if self._end is not None and self._end.alive:
            with contextlib.suppress(RuntimeError):  # a GPU that is lost copies nothing any more
                self.wait()
            self._end()


def _warn_once(text: str) -> None:
    """Warns once: the limit is the process's, and every link and bucket would say the same."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _unregister(cudart: Any, address: int, memory: memoryview) -> None:
    cudart.cudaHostUnregister(address)


def _forget_last_error(device: torch.device) -> None:
    """Clears CUDA's last error, which the next kernel launch would report."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)
