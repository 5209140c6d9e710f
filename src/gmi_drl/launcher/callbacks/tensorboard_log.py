"""Writes metrics for TensorBoard, without torch, which the launcher never imports."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from .callback import Callback, EndedRun, StartedRun, scalars

FOLDER: Final = "tb"  # in a run's folder
_FLUSH_S: Final = 30.0
_VERSION: Final = "brain.Event:2"  # what a file of events begins with
_NUMBERS: Final = itertools.count()  # of this process's files


class EventFile:
    """Writes a file of events in the calling thread; OSError where the disk is full."""

    def __init__(self, folder: Path, suffix: str = "") -> None:
        self._event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
        records: Any = import_module("tensorboard.summary.writer.record_writer")
        folder.mkdir(parents=True, exist_ok=True)
        number = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        path = folder / f"events.out.tfevents.{number}{suffix}"
        self._file = open(path, "wb")  # noqa: SIM115 (until `close`)
        self._records = records.RecordWriter(self._file)
        self._flushed_s = time.monotonic()
        try:
            self.add(file_version=_VERSION)
        except OSError:
            self.close()
            raise

    def add(self, **fields: Any) -> None:
        """Adds an event; it is in the file within half a minute, or when the file is closed."""
        event = self._event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())
        if time.monotonic() - self._flushed_s > _FLUSH_S:
            self._file.flush()
            self._flushed_s = time.monotonic()

    def close(self) -> None:
        """Ends the file; OSError if what is left does not fit on the disk."""
        self._file.close()


class TensorBoardLog(Callback):
    """Writes one file of events a launch to `tb/`; what an earlier one had beyond is left out.

    TensorBoard is imported at the first iteration, while GMIs train: it takes half a second.
    """

    only_logged: ClassVar[bool] = True

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._events: EventFile | None = None
        self._last = 0

    def on_start(self, run: StartedRun) -> None:
        self._folder = run.folder / FOLDER

    def on_iteration(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        proto: Any = import_module("tensorboard.compat.proto.event_pb2")
        summary: Any = import_module("tensorboard.compat.proto.summary_pb2")
        goes_back = iteration <= self._last
        if self._events is None:
            assert self._folder is not None
            self._events = EventFile(self._folder)
            goes_back = iteration > 1  # what a killed launch wrote beyond its last checkpoint
        if goes_back:
            start = proto.SessionLog(status=proto.SessionLog.START)
            self._events.add(step=iteration, session_log=start)
        self._last = iteration
        values = [
            summary.Summary.Value(tag=f"train/{key}", simple_value=value)
            for key, value in scalars(metrics).items()
        ]
        self._events.add(step=iteration, summary=summary.Summary(value=values))

    @classmethod
    def write(cls, folder: Path, metrics: Iterable[Mapping[str, Any]]) -> None:
        """Writes all iterations of a run that has ended to its folder."""
        log = cls()
        log._folder = folder / FOLDER
        for line in metrics:
            log.on_iteration(line["iteration"], line)
        log.on_end(EndedRun("finished"))

    def on_end(self, end: EndedRun) -> None:
        if self._events is not None:
            self._events.close()
