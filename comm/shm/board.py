"""The policy board holds versions of a vector, written by one process and read by all on the host.

One page of words, then three buffers. The words (64 bits, each written in one store by the writer):

    latest        (version + 1) * 4 + the number of its buffer; 0 before the first one
    seq[3]        of each buffer: odd while it is being written, grows
    version[3]    + 1 of what is in each buffer
    numel, bell, finished, writer's pid and start

Why a reader never gets a torn vector (a seqlock for each buffer; `|` is a fence). The writer takes
the buffer after the latest one and does: seq = odd | version, vector | seq = even | latest | bell.
A reader does: latest | seq, stop if odd | version, vector | seq again. Had the writer stored any
part of another vector into the buffer while it was read, it had made seq odd before that, and the
reader's second look, which is behind its last load, sees another number than the first: it starts
over with the newer `latest`. Equal even numbers mean that nothing was written between the two
looks. Should the buffer by then hold another version than `latest` named, it starts over as well:
that one may not be announced yet, and must not be seen before it is. A buffer is written again only
with the third version after it, so that starting over is rare.

Why the writer may die anywhere. `latest` is stored last and only ever names a whole buffer, which
the next writer leaves alone: it takes the one after it, and makes an odd seq odd anew, higher. It
starts from `latest`, and `publish` refuses versions that are not above it: what a reader has seen
never goes back. Killed between `latest` and the bell it wakes nobody; sleeps end after 100 ms.

Why no wake-up is lost. A reader loads the bell | latest, and sleeps if the bell is still what it
was. The writer stores latest | bell, and wakes: either the reader saw the new latest, or the bell
has changed, or it is woken. `finished` is stored like `latest`, before the bell.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gmi_drl.comm.errors import BoardError, BoardTimeout
from gmi_drl.runtime.process.progress import waiting
from gmi_drl.runtime.store.alignment import round_up
from gmi_drl.runtime.store.memfd import Memfd

from .futex import Fence, Futex
from .liveness import claim, peer_text

if TYPE_CHECKING:
    from torch import Tensor

_WORDS_BYTES: Final = mmap.PAGESIZE
_BUFFERS: Final = 3
_LATEST, _NUMEL, _BELL, _FINISHED, _PID, _SEQ, _VERSION = 0, 2, 8, 9, 10, 16, 24
_SLEEP_S: Final = 0.1
_MAX_VERSION: Final = (1 << 61) - 2


@dataclass(frozen=True)
class BoardSpec:
    """The means to open a board; it passes through the arguments of an actor call."""

    writer_name: str  # as errors call who publishes: "gmi 4, GPU 1"
    memfd: Memfd

    def writer(self) -> BoardWriter:
        """Opens the board as the process that publishes.

        Takes over from one that is gone; BoardError while it lives.
        """
        return BoardWriter(self)

    def reader(self) -> BoardReader:
        """Opens the board to read; any number may. Waits for nobody."""
        return BoardReader(self)


def create_board(writer_name: str = "the first trainer") -> BoardSpec:
    """Makes an empty board. Its memory has no name and goes with the last process of it."""
    return BoardSpec(writer_name, Memfd.create("gmi-drl-board", _WORDS_BYTES))


class _End:
    """The words, and the buffers once their length is known. Not for several threads at once."""

    def __init__(self, spec: BoardSpec) -> None:
        self._spec = spec
        page = spec.memfd.map(0, _WORDS_BYTES)
        self._words = page.cast("Q")
        self._fence = Fence()
        self._bell = Futex(page, _BELL * 8)
        self._buffers: list[Tensor] = []

    def _map(self) -> None:
        import torch

        numel = self._words[_NUMEL]
        stride = _stride(numel)
        memory = self._spec.memfd.map(_WORDS_BYTES, _BUFFERS * stride)
        flat = torch.frombuffer(memory, dtype=torch.float32).view(_BUFFERS, stride // 4)
        self._buffers = [buffer[:numel] for buffer in flat]

    def version(self) -> int:
        """Returns the newest version; -1 before the first one."""
        return self._words[_LATEST] // 4 - 1

    @property
    def numel(self) -> int:
        """Returns the length of the vectors; 0 before the first one."""
        return self._words[_NUMEL]

    def finished(self) -> bool:
        """Tells whether nothing more will be published, as the writer's work is done."""
        return bool(self._words[_FINISHED])

    def _check(self, vector: Tensor) -> None:
        import torch

        numel = self._words[_NUMEL]
        if vector.dtype != torch.float32 or vector.shape != (numel,):
            raise BoardError(
                f"a vector {vector.dtype} {list(vector.shape)}: this board holds float32 "
                f"[{numel}], as was published first. Use the same policy everywhere."
            )


class BoardWriter(_End):
    """The end that publishes."""

    def __init__(self, spec: BoardSpec) -> None:
        super().__init__(spec)
        process = claim(self._words, _PID)
        if process not in (0, os.getpid()):
            raise BoardError(
                f"{spec.writer_name} publishes already, in process {process}. A board has one "
                "writer; a new one takes over when that process is gone."
            )

    def publish(self, version: int, vector: Tensor) -> None:
        """Publishes `vector` [P] float32, on any device, as `version`, higher than all before.

        Copies it and waits for nobody.
        """
        words, fence = self._words, self._fence
        if not self.version() < version <= _MAX_VERSION:
            raise BoardError(
                f"version {version}: {self.version()} was published already, and versions only "
                "grow. A trainer that was restarted goes on from BoardWriter.version() + 1."
            )
        if not self._buffers:
            self._open(vector)
        self._check(vector)
        number = (words[_LATEST] % 4 + 1) % _BUFFERS
        seq = words[_SEQ + number]
        words[_SEQ + number] = seq + 2 if seq % 2 else seq + 1
        fence()
        words[_VERSION + number] = version + 1
        self._buffers[number].copy_(vector.detach())
        fence()
        words[_SEQ + number] += 1
        fence()
        words[_LATEST] = (version + 1) * 4 + number
        self._ring()

    def finish(self) -> None:
        """Says that nothing more will be published: who waits is told."""
        self._words[_FINISHED] = 1
        self._ring()

    def _open(self, vector: Tensor) -> None:
        if not self._words[_NUMEL]:
            if vector.numel() < 1 or vector.dim() != 1:
                raise BoardError(
                    f"a vector of shape {list(vector.shape)}: it must be flat and have one number "
                    "or more. Flatten the parameters."
                )
            self._spec.memfd.resize(_WORDS_BYTES + _BUFFERS * _stride(vector.numel()))
            self._fence()
            self._words[_NUMEL] = vector.numel()
        self._map()

    def _ring(self) -> None:
        self._fence()
        self._words[_BELL] += 1
        self._fence()
        self._bell.wake()


class BoardReader(_End):
    """An end that reads."""

    def read(self, out: Tensor) -> int:
        """Copies the newest vector to `out` [P] float32, on any device; its version.

        Never waits. BoardError before the first version: `wait` for it.
        """
        words, fence = self._words, self._fence
        while True:
            latest = words[_LATEST]
            if not latest:
                raise BoardError(
                    f"{self._spec.writer_name} has published no policy yet. Call wait(-1) first."
                )
            fence()
            if not self._buffers:
                self._map()
                self._check(out)
            number = latest % 4
            seq = words[_SEQ + number]
            fence()
            if seq % 2:
                continue  # three versions newer by now
            if words[_VERSION + number] != latest // 4:
                continue
            self._check(out)
            out.detach().copy_(self._buffers[number])
            fence()
            if words[_SEQ + number] == seq:
                return latest // 4 - 1

    def wait(
        self, version_above: int, timeout: timedelta, stop: Callable[[], bool] | None = None
    ) -> int:
        """Waits for the newest version, until it is above `version_above` or the board is finished.

        -1 for the first there is. BoardTimeout, naming the writer, if there is none in time.
        With `stop`, which is asked every 100 ms, the wait also ends when it says True.
        """
        words, fence = self._words, self._fence
        deadline_s = time.monotonic() + timeout.total_seconds()
        while True:
            bell = words[_BELL]
            fence()
            version = self.version()
            if version > version_above or self.finished() or (stop is not None and stop()):
                return self.version()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise BoardTimeout(
                    f"no policy newer than version {version_above} within "
                    f"{timeout.total_seconds():g} s: {self._spec.writer_name} has published "
                    f"{'none' if version < 0 else f'version {version} last'}; "
                    f"{peer_text(self._words, _PID, 'it')} Raise the timeout if it takes longer."
                )
            with waiting:
                self._bell.wait(bell, min(_SLEEP_S, left_s))


def _stride(numel: int) -> int:
    return round_up(numel * 4, mmap.PAGESIZE)
