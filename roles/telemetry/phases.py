"""The phases of an iteration as named ranges, and the trace of a GMI that shows them.

    with phase("simulate"):
        ...

The names are those that times are reported by (see `gmi_drl.roles.telemetry.progress`). A phase
inside another one interrupts it: `reduce` is no part of `train`, in a trace as in the metrics.

A range is seen by the torch profiler while a `Trace` records (`run.profile`), and by NVIDIA's tools
while one of them has started this process. With neither it costs two empty calls, 0.14 us.
Torch is not imported before it is needed: a launcher names files by this module.
"""

from __future__ import annotations

import gzip
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from torch.profiler import profile

FOLDER: Final = "profile"  # in a run's folder
SUFFIX: Final = ".pt.trace.json.gz"  # by this TensorBoard's plugin knows them; Perfetto takes any
# Iterations of a GMI, counted from 1 in each of its processes. Before the first that is recorded
# allocators fill, code is compiled, and the profiler itself runs for one that is thrown away.
FIRST: Final = 4
LAST: Final = 6

# Set in the processes that a tool starts: the library that is to get NVTX ranges, by the NVTX
# documentation, and Nsight Systems' mark of a session.
_NVTX_TOOLS: Final = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_TAIL_BYTES: Final = 4096


def phase(name: str) -> AbstractContextManager[None]:
    """Names what this thread does inside the `with`, which it may enter any number of times."""
    return _Range(name) if _Range.recording or _Range.nvtx else _NOTHING


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Returns seconds of phases to the microsecond, so that a line of metrics stays short."""
    return {name: round(value, 6) for name, value in seconds.items()}


def show_to_tools() -> None:
    """Gives phases to NVTX from now on, if a tool asks for that in this process's environment.

    Not in a run that torch profiles: both would need CUPTI, which serves one at a time.
    """
    import torch

    is_asked = any(os.environ.get(name) for name in _NVTX_TOOLS)
    _Range.nvtx = is_asked and torch.cuda.is_available()


_NOTHING: Final = nullcontext()


class _OpenPhases(threading.local):
    """The phases that a thread is in, of which the last one is not interrupted."""

    def __init__(self) -> None:
        self.stack: list[_Range] = []


class _Range(AbstractContextManager[None]):
    """A phase that somebody looks at."""

    recording: ClassVar[bool] = False  # by the torch profiler, in some thread of this process
    nvtx: ClassVar[bool] = False
    _open: ClassVar = _OpenPhases()

    def __init__(self, name: str) -> None:
        self._name = name
        self._record: Any = None
        self._pushed = False

    def __enter__(self) -> None:
        stack = self._open.stack
        if stack:
            stack[-1]._end()
        stack.append(self)
        self._begin()

    def __exit__(self, *error: object) -> None:
        self._end()
        stack = self._open.stack
        stack.pop()
        if stack:
            stack[-1]._begin()

    def _begin(self) -> None:
        import torch

        if _Range.recording:
            self._record = torch.profiler.record_function(self._name)
            self._record.__enter__()
        if _Range.nvtx:
            torch.cuda.nvtx.range_push(self._name)  # type: ignore[no-untyped-call]
            self._pushed = True

    def _end(self) -> None:
        import torch

        if self._pushed:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
            self._pushed = False
        if self._record is not None:
            self._record.__exit__(None, None, None)
            self._record = None


def trace_path(folder: Path, gmi_id: int) -> Path:
    """Returns the path of a GMI's trace in a run's folder."""
    return folder / FOLDER / f"gmi{gmi_id}{SUFFIX}"


class Trace:
    """Records iterations FIRST to LAST of a GMI, and writes them to `path`.

    The GMI's thread makes it and makes all calls. Of GMIs that are threads of one process only the
    first is recorded, and all that the GPU does for any of them: with `profile_all_threads` torch
    2.13 now and then crashes when the recording ends while other threads compute.

    `warn` is told why there is no trace; nothing that goes wrong with it raises. A process that is
    killed leaves a whole file or none by that name.
    """

    def __init__(self, path: Path, gmi_id: int, gpu: bool, warn: Callable[[str], None]) -> None:
        self._path, self._gmi_id, self._gpu, self._warn = path, gmi_id, gpu, warn
        self._begun = 0  # iterations
        self._profile: profile | None = None
        self._over = False

    def begin_iteration(self) -> None:
        """Begins an iteration, which ends the one before; writes the file after LAST."""
        if self._over:
            return
        self._begun += 1
        self._run_guarded(self._step)
        if self._begun > LAST:
            self._end()

    def close(self) -> None:
        """Writes what there is, if that is not done: nothing more comes."""
        if self._over:
            return
        if self._profile is not None:
            self._run_guarded(self._profile.stop)
        if self._begun < FIRST:
            self._warn_no_trace(
                f"it begins with iteration {FIRST}, and {self._begun} have begun. Raise "
                "run.total_steps; a role of your own calls mgr.begin_iteration() at each"
            )
        self._end()

    def _step(self) -> None:
        from torch.autograd import profiler

        if self._profile is None:
            self._profile = self._make_profile()
            self._profile.start()
        if self._begun in (FIRST - 1, FIRST) and profiler._is_profiler_enabled:
            raise RuntimeError("another profiler is at work here, which ours would end")
        _Range.recording = self._begun >= FIRST - 1
        self._profile.step()
        if self._begun > LAST:
            self._profile.stop()  # it has marked the beginning of one more

    def _make_profile(self) -> profile:
        from torch.profiler import ProfilerActivity, profile, schedule

        activities = [ProfilerActivity.CPU]
        if self._gpu:
            activities.append(ProfilerActivity.CUDA)
        # Its steps are counted from 0, which is all that comes before the first iteration.
        iterations = schedule(wait=FIRST - 1, warmup=1, active=LAST - FIRST + 1, repeat=1)
        # There is one cycle. acc_events keeps torch 2.11 from a warning that it clears others.
        return profile(
            activities=activities, schedule=iterations, on_trace_ready=self._write, acc_events=True
        )

    def _write(self, profile: profile) -> None:
        self._path.parent.mkdir(exist_ok=True)
        plain, packed = (self._path.with_name(f".{self._path.name}.{s}") for s in ("json", "tmp"))
        try:
            profile.export_chrome_trace(str(plain))
            _check_whole(plain)
            with open(packed, "wb") as file:
                with (
                    open(plain, "rb") as source,
                    gzip.GzipFile("", "wb", compresslevel=6, fileobj=file) as target,
                ):
                    shutil.copyfileobj(source, target)
                file.flush()
                os.fsync(file.fileno())
            packed.replace(self._path)
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)

    def _run_guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (OSError, RuntimeError) as error:  # a full disk; a role that profiles by itself
            self._warn_no_trace(f"{type(error).__name__}: {error}")
            self._end()

    def _end(self) -> None:
        self._over, self._profile, _Range.recording = True, None, False

    def _warn_no_trace(self, why: str) -> None:
        self._warn(f"gmi {self._gmi_id}: no trace is written: {why}")


def _check_whole(path: Path) -> None:
    """Raises OSError if the end of a trace is missing: its writer does not tell of a full disk."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = file.read().rstrip()
    if not (b'"traceName"' in tail and tail.endswith(b"}")):
        raise OSError(f"{path} is not whole; is there room on the disk?")
