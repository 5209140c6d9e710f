"""Films the policy while it is trained, and shows the films in TensorBoard: `run.video_every`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from .callback import Callback, EndedRun, StartedRun
from .tensorboard_log import FOLDER as TENSORBOARD
from .tensorboard_log import EventFile

FOLDER: Final = "report/videos"  # in a run's folder: iteration_000050.gif, with films.log
_KEPT: Final = ".filmed"  # in checkpoints/, while a film is made
_MOST_FRAMES: Final = 300
_LONGEST_S: Final = 300.0  # of one film; a longer one is given up
_END_S: Final = 40.0  # for one that is given up to end what draws it, which takes 30 at most
_LOOK_S: Final = 0.1


class VideoError(RuntimeError):
    """Says why there is no film."""


class VideoLog(Callback):
    """Has `gmi-drl video` film checkpoints, one at a time, in a process of its own.

    A checkpoint that comes while a film is made is not filmed. The last one is, when the run is
    finished; one that is stopped waits for no film.
    """

    def __init__(self, every: int) -> None:
        """`every`: iterations between films, at least."""
        self._every = every
        self._next = 0  # the iteration from which on a checkpoint is filmed
        self._newest: Path | None = None  # a checkpoint that was not filmed
        self._film: tuple[subprocess.Popen[bytes], Path, int, float] | None = None
        self._run = Path()

    def on_start(self, run: StartedRun) -> None:
        self._run = run.folder
        (run.folder / FOLDER).mkdir(parents=True, exist_ok=True)

    def on_iteration(self, iteration: int, metrics: Any) -> None:
        self._look()

    def on_checkpoint(self, path: Path) -> None:
        self._look()
        self._newest = path
        if self._film is None and _iteration_of(path) >= self._next:
            self._begin(path)

    def on_end(self, end: EndedRun) -> None:
        if end.state != "finished":  # stopped by Ctrl-C or failed: no film is waited for
            try:
                self._look()
            finally:
                self._drop()
            return
        failed: VideoError | None = None
        try:
            self._await()
        except VideoError as error:
            failed = error
        if self._newest is not None:
            self._begin(self._newest)
            self._await()
        if failed is not None:
            raise failed

    def _begin(self, checkpoint: Path) -> None:
        iteration = _iteration_of(checkpoint)
        folder = self._run / FOLDER
        file = folder / f"iteration_{iteration:06d}.gif"
        kept = _linked(checkpoint)
        if kept is None:
            return  # it is dropped already: a newer one is filmed later
        command = [sys.executable, "-m", "gmi_drl", "video", str(kept), "-o", str(file)]
        with open(folder / "films.log", "ab") as log:
            process = subprocess.Popen(
                [*command, "--max-frames", str(_MOST_FRAMES)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C is the launcher's alone
            )
        self._film = process, file, iteration, time.monotonic()
        self._next, self._newest = iteration + self._every, None

    def _look(self) -> None:
        """Shows the film that was begun, if it is there by now; VideoError if it failed."""
        if self._film is None:
            return
        process, file, iteration, began_s = self._film
        if process.poll() is None:
            if time.monotonic() - began_s < _LONGEST_S:
                return
            self._drop()
            raise VideoError(f"{file} took more than {_LONGEST_S:.0f} s, and was given up")
        self._film = None
        shutil.rmtree(self._run / "checkpoints" / _KEPT, ignore_errors=True)
        if process.returncode or not file.is_file():
            log = file.parent / "films.log"
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise VideoError(f"no film of iteration {iteration}: {''.join(last)} (see {log})")
        self._show(file, iteration)

    def _await(self) -> None:
        try:
            while self._film is not None:
                self._look()
                if self._film is not None:
                    time.sleep(_LOOK_S)
        finally:  # Ctrl-C
            self._drop()

    def _drop(self) -> None:
        """Ends the film that is being made, if one is."""
        if self._film is None:
            return
        (process, *_), self._film = self._film, None
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(_END_S)
                break
        shutil.rmtree(self._run / "checkpoints" / _KEPT, ignore_errors=True)

    def _show(self, file: Path, iteration: int) -> None:
        summary: Any = import_module("tensorboard.compat.proto.summary_pb2")
        image = summary.Summary.Image(encoded_image_string=file.read_bytes(), colorspace=3)
        value = summary.Summary.Value(tag="video/greedy", image=image)
        events = EventFile(self._run / TENSORBOARD, ".video")
        events.add(step=iteration, summary=summary.Summary(value=[value]))
        events.close()


def _linked(checkpoint: Path) -> Path | None:
    """Returns a checkpoint of the same files that stays when the run drops that one.

    None if it has been dropped.
    """
    kept = checkpoint.with_name(_KEPT)
    for copy in (os.link, shutil.copy2):  # not every file system has links
        shutil.rmtree(kept, ignore_errors=True)
        try:
            shutil.copytree(checkpoint, kept, copy_function=copy)
        except (OSError, shutil.Error):
            if not checkpoint.exists():
                break
            if copy is shutil.copy2:
                raise
        else:
            return kept
    shutil.rmtree(kept, ignore_errors=True)
    return None


def _iteration_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("_")[2])
