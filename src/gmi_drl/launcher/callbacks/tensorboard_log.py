"""Writes metrics for TensorBoard, without torch, which the launcher never imports."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from .callback import Callback, EndedRun, StartedRun, scalars

FOLDER: Final = "tb"  # in a run's folder
_FLUSH_S: Final = 30
_QUEUED: Final = 1000  # events


class TensorBoardLog(Callback):
    """Writes one file of events a launch to `tb/`; what an earlier one had beyond is left out.

    TensorBoard is imported at the first iteration, while GMIs train: it takes half a second.
    """

    only_logged: ClassVar[bool] = True

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._writer: Any = None  # an EventFileWriter
        self._last = 0

    def on_start(self, run: StartedRun) -> None:
        self._folder = run.folder / FOLDER

    def on_iteration(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        proto: Any = import_module("tensorboard.compat.proto.event_pb2")
        summary: Any = import_module("tensorboard.compat.proto.summary_pb2")
        goes_back = iteration <= self._last
        if self._writer is None:
            self._writer = self._opened()
            goes_back = iteration > 1  # what a killed launch wrote beyond its last checkpoint
        if goes_back:
            start = proto.SessionLog(status=proto.SessionLog.START)
            event = proto.Event(step=iteration, wall_time=time.time(), session_log=start)
            self._writer.add_event(event)
        self._last = iteration
        values = [
            summary.Summary.Value(tag=f"train/{key}", simple_value=value)
            for key, value in scalars(metrics).items()
        ]
        told = summary.Summary(value=values)
        self._writer.add_event(proto.Event(step=iteration, wall_time=time.time(), summary=told))

    @classmethod
    def write(cls, folder: Path, metrics: Iterable[Mapping[str, Any]]) -> None:
        """Writes all iterations of a run that has ended to its folder."""
        log = cls()
        log._folder = folder / FOLDER
        for line in metrics:
            log.on_iteration(line["iteration"], line)
        log.on_end(EndedRun("finished"))

    def _opened(self) -> Any:
        module: Any = import_module("tensorboard.summary.writer.event_file_writer")
        assert self._folder is not None
        return module.EventFileWriter(
            str(self._folder), max_queue_size=_QUEUED, flush_secs=_FLUSH_S
        )

    def on_end(self, end: EndedRun) -> None:
        if self._writer is not None:
            self._writer.close()
