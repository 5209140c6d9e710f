"""Runs a candidate; gives it up when it is late, idle, or takes the memory, and says why."""

from __future__ import annotations

import errno
import gc
import re
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gmi_drl import runtime
from gmi_drl.gmi import DeviceMemoryError, Gang, GmiDied, GmiError, GmiTimeout
from gmi_drl.gmi.usage import processes
from gmi_drl.gmi.usage.meter import Meter
from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.launcher.start.launcher import launch
from gmi_drl.launcher.start.result import RunResult
from gmi_drl.launcher.watch.watch import Watch
from gmi_drl.placement import Config, ConfigError, Layout, LayoutError, Topology
from gmi_drl.runtime import ObjectStoreFullError, TaskError
from gmi_drl.runtime.errors import exit_text
from gmi_drl.selector.tune.candidate import Candidate, Failed, Reason
from gmi_drl.selector.tune.space import config_of, layout_text

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
        return _failure_of_gmi(error, layout, oom_kills)
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


def _failure_of_gmi(error: GmiDied, layout: Layout | None, oom_kills: int) -> Failed:
    name = f"gmi {error.gmi_id} ({error.role})"
    raised, cause = error.error.rstrip(), error.__cause__
    if isinstance(cause, TaskError) and cause.cause is not None:
        cause = cause.cause  # as it was raised there: not every class can be derived from
    message = _last_line(raised or error.log_tail)
    if isinstance(cause, ObjectStoreFullError):
        return _failed("memory", f"{name}: the object store is full: {message}")
    if isinstance(cause, DeviceMemoryError):
        return _failed("memory", str(cause))  # it says which GMI, and its share
    output = raised or error.log_tail
    if _DEVICE.search(output):
        return _failed("memory", f"{name}: {_device_limit(error.gmi_id, layout)}: {message}")
    if isinstance(cause, MemoryError) or _HOST.search(output):
        return _failed("memory", f"{name}: host memory ran out: {message}")
    if error.signal == signal.SIGKILL and oom_kills:
        return _failed("memory", f"{name} was killed by the kernel: host memory ran out")
    if raised:
        is_late = isinstance(cause, TimeoutError) or _HANGS.search(message)
        return _failed("hang" if is_late else "crash", f"{name} raised {message}")
    end = exit_text(error.exit_code, error.signal)
    if error.reason:  # something else has ended it: its log says nothing of that
        is_hung = " hung " in error.reason
        return _failed("hang" if is_hung else "crash", f"{name} {end}: {error.reason}")
    return _failed("crash", f"{name} {end}{f': {message}' if message else ', its log is empty'}")


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


# A candidate is ended when less of the memory is left than the smaller of these: before the machine
# swaps, or the kernel chooses whom to kill.
_RESERVE: Final = 0.02
_RESERVE_BYTES: Final = 1 << 30
_FIRST_S: Final = 60.0
_STARTS: Final = 5  # first iterations that take as long as they may, in a budget
_LEAST_S: Final = 10.0  # for a first iteration, however short the budget
_QUIET: Final = 1 / 3  # of the time that is waited: who did nothing for so long is idle


class StopRun(Exception):
    """A watch raises it: the run has shown enough, or will not."""


class GangWatch(Watch, Protocol):
    """A `Watch` that keeps its gang."""

    gang: Gang | None


def run_watched(
    config_in: Callable[[Path], Config], watch: GangWatch, beside: Path | None
) -> RunResult | Failed | None:
    """Launches `config_in(folder)`, in a new folder; None when the watch ended it by `StopRun`.

    Failed is what a candidate did; what is wrong with the runtime or the disk raises. Nothing is
    left.
    """
    kills = processes.oom_kills()
    with tempfile.TemporaryDirectory(
        prefix="measured-", dir=runtime.run_directory(), ignore_cleanup_errors=True
    ) as folder:
        failed: Failed | None = None
        try:
            config = config_in(Path(folder))
            unfollowed = {"callbacks": (), "log": (), "video_every": 0}
            config = config.model_copy(update={"run": config.run.model_copy(update=unfollowed)})
            result = launch(config, view="none", keep_gcs=False, watch=watch, import_path=beside)
        except StopRun:
            return None
        except Exception as error:
            layout = None if watch.gang is None else watch.gang.layout
            failed = classify(error, layout, oom_kills=processes.oom_kills() - kills)
            if failed is None:
                raise
        finally:
            _drop_gang(watch)
    if failed is not None:
        gc.collect()  # the error and its gang hold each other, and memory of the candidate
        return failed
    if result.state == "stopped":
        raise KeyboardInterrupt
    return result


def _drop_gang(watch: GangWatch) -> None:
    """Drops a watch's gang and its last records, so that the runtime frees what it keeps."""
    while watch.gang is not None:
        try:
            watch.gang.records()
            watch.gang = None
        except runtime.SerializationError:  # of one record: the others are still there
            continue


def candidate_config(
    config: Config,
    candidate: Candidate,
    folder: Path,
    topology: Topology | None = None,
    total_steps: int | None = None,
) -> Config:
    """Returns `config` with a candidate's values, run in `folder`; its layout file goes there."""
    layout_file = None
    if candidate.row.percents is not None:
        layout_file = folder / "layout.yaml"
        text = layout_text(config, candidate, topology or find_devices(config))
        layout_file.write_text(text, encoding="utf-8")
    resolved = config_of(config, candidate, layout_file)
    changes = {
        "folder": str(folder), "total_steps": total_steps or config.run.total_steps,
        "eval_episodes": 0, "checkpoint_every": 0, "target_return": None, "max_restarts": 0,
        "profile": False,
    }  # fmt: skip
    return resolved.model_copy(update={"run": resolved.run.model_copy(update=changes)})


@dataclass(frozen=True)
class CandidateTimeout:
    """Says how long a candidate is waited for, in seconds."""

    first_s: float = _FIRST_S  # for the first iteration, with the start and building environments
    next_s: float = 5.0  # for each one after it, if no more is asked for
    idle_s: float = 10.0  # with no GMI doing anything

    @classmethod
    def of(cls, budget_s: float) -> CandidateTimeout:
        """Returns the timeouts of a tune: with more budget a first iteration may take longer."""
        first_s = max(_FIRST_S, budget_s / _STARTS)
        return cls(first_s=min(first_s, max(_LEAST_S, budget_s)))

    def failure(
        self,
        layout: Layout,
        meter: Meter,
        *,
        since_s: float,
        limit_s: float,
        heard_s: float,
        is_first: bool = False,
    ) -> Failed | None:
        """Says why an iteration is waited for no longer; times are those of the monotonic clock.

        It may take `limit_s` from `since_s`, the last one's end or the start; at `heard_s` any GMI
        reported something at last.
        """
        memory = processes.host_memory()
        if memory.free_bytes < min(_RESERVE * memory.of_bytes, _RESERVE_BYTES):
            free, total = memory.free_bytes / 2**30, memory.of_bytes / 2**30
            text = f"host memory: {free:.2f} GiB are left of the {total:.1f} GiB of {memory.whose}"
            return Failed("memory", text)
        now_s = time.monotonic()
        waited_s = now_s - since_s
        article = "the first" if is_first else "an"
        overdue = f"{article} iteration has not ended after {waited_s:.0f} s"
        idle_s = {gmi: now_s - at_s for gmi, at_s in sorted(meter.worked_s.items())}
        if idle_s and min([now_s - heard_s, *idle_s.values()]) > self.idle_s:
            return Failed("hang", f"{overdue}, and no GMI does anything")
        if waited_s <= limit_s:
            return None
        if not idle_s:
            return Failed("hang", f"{overdue}; no GMI runs")
        used = ", ".join(f"gmi {gmi} {cores:.2f}" for gmi, cores in sorted(meter.busy.items()))
        usage = f"cores in use: {used}"
        quiet_s = min(self.idle_s, waited_s * _QUIET)
        if stuck := _stuck(layout, {gmi for gmi, gmi_s in idle_s.items() if gmi_s > quiet_s}):
            idle_texts = [f"gmi {gmi} has done nothing for {idle_s[gmi]:.0f} s" for gmi in stuck]
            return Failed("hang", "; ".join([overdue, *idle_texts, usage]))
        longer = "; a longer budget waits longer" if is_first else ""
        return Failed("slow", f"{overdue}; {usage}{longer}")


def _stuck(layout: Layout, idle: set[int]) -> list[int]:
    """Picks, of GMIs that do nothing, those that hang; the others may wait for one that works.

    Where all but one do nothing, they wait for that one, and GMIs that only train or infer wait for
    those that simulate. Of two that simulate it cannot be told: the idle one is taken to hang.
    """
    if len(idle) == len(layout.gmis):
        return sorted(idle)
    simulating = {gmi.gmi_id for gmi in layout.holding("simulator")}
    still, busy = simulating & idle, simulating - idle
    return sorted(still) if busy and (len(busy) > 1 or len(still) == 1) else []
