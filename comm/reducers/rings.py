"""Rings all-reduce among some ranks of a group by torch.distributed, without a hang.

Process groups are built on a FileStore in the group's own folder, a file per ring and generation,
and on 127.0.0.1; there is no global process group. gloo moves memory of the host, NCCL that of
GPUs.

Neither of the two can say who is late, nor go on when a process was replaced. So every use of a
ring stands between two meetings of the group. Before: all are there, at the same call of the same
bucket. During: operations run beside this thread, which looks every 20 ms whether a rank has left
or was replaced, and gives up when one has, or after half the group's time-out. After: all ranks
meet again, successful or not; a rank that is gone is named there, or replaced, as at any meeting.
A ring that was given up is dropped: its connections close, which frees ranks that still wait in it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from gmi_drl.comm.group import tags as _tags
from gmi_drl.comm.group.tags import make_tag
from gmi_drl.runtime.process.progress import waiting

from .torch_backend import LOOK_S, connected, dist, drop, first_line, gloo, wait

if TYPE_CHECKING:
    from .shared_group import SharedGroup

# Of the group's time-out: those who wait outside a ring shall still wait when it is given up, so
# that they name who stopped in it, and not everybody in it.
_SHARE: Final = 0.5
_NAP_S: Final = 0.000_05  # between two looks at a GPU's event


class RingFault(Exception):
    """An operation of a ring did not complete; the text says what was found here."""


class Rings:
    """The rings of one rank, by name. `ranks_of` has the ranks of every ring of the group."""

    def __init__(
        self, group: SharedGroup, kind: str, ranks_of: Mapping[str, Sequence[int]]
    ) -> None:
        self._group, self._kind = group, kind
        self._prefix = f"{group.generation}-"  # of its files
        self._ranks_of = {
            name: ranks
            for name, ranks in ranks_of.items()
            if group.rank in ranks and len(ranks) > 1
        }
        self._rings: dict[str, Ring] = {}
        self.deadline_s = 0.0  # of what is attempted

    def build(self) -> None:
        """Connects the rings; returns when every rank has. Collective."""
        group = self._group
        folder = group.directory
        assert folder is not None

        def connect() -> None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, ranks in self._ranks_of.items():
                path = folder / f"{self._prefix}{self._kind}-{name}"
                self._rings[name] = Ring(self, group, self._kind, path, ranks)

        fault = self.attempt(connect)
        group.meet_after(make_tag(_tags.CREATE, source=1), fault)
        if group.rank == 0:
            # Everybody has found everybody, and nobody is in a later generation.
            _remove(folder, "")

    def get(self, name: str) -> Ring | None:
        """Returns the ring of this name, if this rank is in it."""
        return self._rings.get(name)

    def attempt(self, steps: Callable[[], None]) -> str | None:
        """Runs operations of rings; returns what went wrong, for `meet_after`, or None."""
        self.deadline_s = time.monotonic() + self._group.timeout_s * _SHARE
        try:
            steps()
        except RingFault as fault:
            self.drop()
            return str(fault)
        except BaseException as error:  # also KeyboardInterrupt: this call cannot be repeated
            self.drop()
            self._group.give_up(error)
            raise
        return None

    def drop(self) -> None:
        """Closes the rings' connections."""
        rings, self._rings = self._rings, {}
        for ring in rings.values():
            ring.drop()

    def end(self) -> None:
        """Drops the rings of a generation that is over, and what is left of its files."""
        self.drop()
        assert self._group.directory is not None
        _remove(self._group.directory, self._prefix)


class Ring:
    """One ring that this rank is in. `index` is its place in it. Operations raise RingFault."""

    def __init__(
        self, rings: Rings, group: SharedGroup, kind: str, path: Path, ranks: Sequence[int]
    ) -> None:
        self.size, self.index = len(ranks), ranks.index(group.rank)
        self._rings, self._group, self._kind = rings, group, kind
        self._backend: Any = self._connected(path)

    def all_reduce(self, tensor: Tensor) -> None:
        """Turns `tensor` into the sum over the ring, the same bits on every rank."""
        self._run(lambda backend: backend.allreduce([tensor]))

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Turns `tensor` into what the rank at place `source` has in it."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._run(lambda backend: backend.broadcast([tensor], options))

    def all_to_all(self, received: Tensor, sent: Tensor) -> None:
        """Sends row i of `sent` to place i; row i of `received` comes from there."""
        self._run(lambda backend: backend.alltoall_base(received, sent, [], []))

    def all_gather(self, whole: Tensor, part: Tensor) -> None:
        """Fills `whole` with the parts of all places, in their order."""
        self._run(lambda backend: backend._allgather_base(whole, part))

    def drop(self) -> None:
        backends, self._backend = [self._backend], None
        if self._kind == "cuda" and backends[0] is not None:
            backends[0].abort()
        drop(backends)

    def _run(self, start: Callable[[Any], Any]) -> None:
        if self._backend is None:
            raise RingFault("the ring was given up before")
        try:
            work = start(self._backend)
            with waiting:
                (_wait_on_gpu if self._kind == "cuda" else wait)(work, self._look)
        except RuntimeError as error:
            raise RingFault(first_line(error)) from None

    def _look(self) -> None:
        """Raises RingFault when there is nothing more to wait for."""
        if self._group.is_disturbed():
            raise RingFault("another rank has left or was replaced")
        if time.monotonic() > self._rings.deadline_s:
            raise RingFault(f"it did not complete within {self._group.timeout_s * _SHARE:g} s")

    def _connected(self, path: Path) -> Any:
        """Connects a backend; waits beside this thread until the others come."""
        timeout = timedelta(seconds=self._group.timeout_s)
        make = _nccl if self._kind == "cuda" else _gloo
        try:
            return connected(lambda: make(path, self.index, self.size, timeout), self._look)
        except RuntimeError as error:
            raise RingFault(str(error)) from None


def _gloo(path: Path, index: int, size: int, timeout: timedelta) -> Any:
    store = dist.FileStore(str(path), -1)
    store.set_timeout(timeout)
    return gloo(store, index, size, timeout, hostname="127.0.0.1")


def _nccl(path: Path, index: int, size: int, timeout: timedelta) -> Any:
    # Else threads of its own watch operations and the store, and may end the process; here the
    # group decides.
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    store = dist.FileStore(str(path), -1)
    store.set_timeout(timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    backend = dist.ProcessGroupNCCL(store, index, size, options)
    backend.allreduce([torch.zeros(1, device="cuda")]).wait()  # connects
    torch.cuda.current_stream().synchronize()
    return backend


def _wait_on_gpu(work: Any, look: Callable[[], None]) -> None:
    """Waits until the GPU has done it: only then can it no longer fail."""
    next_s = time.monotonic() + LOOK_S
    while not work.is_completed():
        time.sleep(_NAP_S)
        if time.monotonic() > next_s:
            look()
            next_s += LOOK_S
    work.wait()  # this device's current stream comes behind it


def _remove(folder: Path, prefix: str) -> None:
    """Removes files where ranks found each other, and their folder when it is empty."""
    with contextlib.suppress(OSError):
        for file in folder.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                file.unlink()
        folder.rmdir()
