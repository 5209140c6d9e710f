"""Classifies what the launch of a candidate raised: why it failed, in a line for people."""

from __future__ import annotations

import errno
import re
import signal
from typing import TYPE_CHECKING, Final

from gmi_drl.gmi import DeviceMemoryError, GmiDied, GmiError, GmiTimeout
from gmi_drl.placement import ConfigError, LayoutError
from gmi_drl.runtime import ObjectStoreFullError, TaskError
from gmi_drl.runtime.errors import exit_text
from gmi_drl.selector.tune.candidate import Failed, Reason

if TYPE_CHECKING:
    from gmi_drl.placement import Layout

# What says that memory ran out, in tracebacks and logs, and whose memory it was.
_DEVICE: Final = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|(CUBLAS|CUDNN|CUSOLVER)_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)"
    r"|RESOURCE_EXHAUSTED|CudaDeviceMemoryAllocator fail",
    re.IGNORECASE,
)
_HOST: Final = re.compile(
    r"\bMemoryError\b|std::bad_alloc|DefaultCPUAllocator|can't allocate memory"
    r"|Cannot allocate memory|could not allocate (memory|\d+)|out of memory",
    re.IGNORECASE,
)
_HANGS: Final = re.compile(r"\b\w*Timeout(Error)?\b.*?: |timed out after")
_LONGEST: Final = 300  # characters of a line for people


def classify(
    error: Exception, layout: Layout | None = None, *, oom_kills: int = 0
) -> Failed | None:
    """Words what an error of `launch` says of the candidate; None: it is other trouble."""
    if isinstance(error, GmiDied):
        return _of_gmi(error, layout, oom_kills)
    if isinstance(error, ObjectStoreFullError):
        return _failed("memory", f"the object store is full: {_first(error)}")
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return _failed("memory", f"host memory ran out in the launcher: {_first(error)}")
    if isinstance(error, ConfigError) and error.faults:
        more = f" (and {len(error.faults) - 1} more)" if len(error.faults) > 1 else ""
        return _failed("refused", f"{error.faults[0]!s}{more}")
    if isinstance(error, GmiTimeout):
        return _failed("hang", _first(error))
    if isinstance(error, (ConfigError, LayoutError, GmiError)):
        return _failed("refused", _first(error))
    return None


def _of_gmi(error: GmiDied, layout: Layout | None, oom_kills: int) -> Failed:
    who = f"gmi {error.gmi_id} ({error.role})"
    raised, cause = error.error.rstrip(), error.__cause__
    if isinstance(cause, TaskError) and cause.cause is not None:
        cause = cause.cause  # as it was raised there: not every class can be derived from
    said = _last_line(raised or error.log_tail)
    if isinstance(cause, ObjectStoreFullError):
        return _failed("memory", f"{who}: the object store is full: {said}")
    if isinstance(cause, DeviceMemoryError):
        return _failed("memory", str(cause))  # it says which GMI, and its share
    where = raised or error.log_tail
    if _DEVICE.search(where):
        return _failed("memory", f"{who}: {_device_limit(error.gmi_id, layout)}: {said}")
    if isinstance(cause, MemoryError) or _HOST.search(where):
        return _failed("memory", f"{who}: host memory ran out: {said}")
    if error.signal == signal.SIGKILL and oom_kills:
        return _failed("memory", f"{who} was killed by the kernel: host memory ran out")
    if raised:
        late = isinstance(cause, TimeoutError) or _HANGS.search(said)
        return _failed("hang" if late else "crash", f"{who} raised {said}")
    how = exit_text(error.exit_code, error.signal)
    if error.reason:  # something else has ended it: its log says nothing of that
        hung = " hung " in error.reason
        return _failed("hang" if hung else "crash", f"{who} {how}: {error.reason}")
    return _failed("crash", f"{who} {how}{f': {said}' if said else ', its log is empty'}")


def _device_limit(gmi_id: int, layout: Layout | None) -> str:
    """Names which memory a GMI ran out of on its device."""
    if layout is None:
        return "device memory ran out"
    spec = layout.gmi(gmi_id)
    if spec.mig is not None:
        return f"the memory of its MIG instance {spec.mig.profile} ran out"
    if spec.mem_bytes is not None:
        limit = f"{spec.mem_bytes / 2**30:.1f} GiB"
        return f"its limit of {limit} of GPU {spec.gpu_id} (backend {spec.backend}) is reached"
    return f"the memory of GPU {spec.gpu_id} ran out"


def _failed(reason: Reason, text: str) -> Failed:
    line = " ".join(text.split())
    return Failed(reason, line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ...")


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _last_line(text: str) -> str:
    """Returns the end of a traceback or a log: the exception, without what came before it."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        # A traceback's last line begins at the margin; an exception's text may have several.
        if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Timeout|Interrupt|Exit|Died)\b", line):
            return line.strip()
    return lines[-1].strip() if lines else ""
