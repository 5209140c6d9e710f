"""Runs a function as every rank of a reducer group, in processes of its own, with a deadline."""

import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import reduction

from fork_context import CONTEXT
from gmi_drl.comm import create_group
from gmi_drl.comm.group.barrier import PID, SLEEP, record
from gmi_drl.runtime import Memfd
from waits import until


@dataclass(frozen=True)
class Died:
    """In place of a result: the process ended without one."""

    exit_code: int


class _Passed:
    """A group that goes to a child of multiprocessing with its descriptor."""

    def __init__(self, spec):
        self.spec = spec

    def __reduce__(self):
        fd = None if self.spec.memfd is None else reduction.DupFd(self.spec.memfd.fd)
        return _received, (dataclasses.replace(self.spec, memfd=None), fd)


def _received(spec, fd):
    return dataclasses.replace(spec, memfd=None if fd is None else Memfd(fd.detach(), "group"))


def _main(spec, rank, timeout_s, connection, body, args):
    import torch

    torch.set_num_threads(1)
    try:
        outcome = body(spec.join(rank, timedelta(seconds=timeout_s)), *args)
    except Exception as error:
        outcome = error
    connection.send(outcome)


class Ranks:
    """The processes of one group. `args` of a rank may be pickled by multiprocessing.

    With `spec`, they are the ranks from `first` on of a group that this process made; else `group`
    says what create_group is told beside its members.
    """

    def __init__(
        self, body, size, *args, timeout_s=30.0, args_of=None, spec=None, first=0, **group
    ):
        members = [f"gmi {r + 3}, GPU {r // 2}" for r in range(size)]
        self.spec = spec or create_group(members, **group)
        self.processes, self._connections = [None] * size, [None] * size
        self._starts = []
        for rank in range(size):
            its = (*args, *(args_of(rank) if args_of else ()))
            self._starts.append((first + rank, timeout_s, body, its))
            self._start(rank)

    def _start(self, rank):
        receive, send = CONTEXT.Pipe(duplex=False)
        number, timeout_s, body, its = self._starts[rank]
        process = CONTEXT.Process(
            target=_main, args=(_Passed(self.spec), number, timeout_s, send, body, its)
        )
        process.start()
        send.close()
        self.processes[rank], self._connections[rank] = process, receive

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()
        for connection in self._connections:
            connection.close()

    def kill(self, rank):
        self.processes[rank].kill()

    def restart(self, rank):
        """Starts a rank whose process was killed again, in a process of its own."""
        self.processes[rank].join()
        self._connections[rank].close()
        self._start(rank)

    def until_asleep(self, rank, waiting_for, within_s=30.0):
        """Returns when `rank` has gone to sleep until `waiting_for` arrives."""
        words = self.spec.memfd.map().cast("Q")
        sleep = record(rank) + SLEEP
        until(lambda: words[sleep] == waiting_for + 1, f"the sleep of rank {rank}", within_s)

    def until_joined(self, rank, within_s=30.0):
        """Returns when the process of `rank` has joined the group."""
        words = self.spec.memfd.map().cast("Q")
        until(lambda: words[record(rank) + PID], f"rank {rank}", within_s)

    def outcome(self, rank, within_s=100.0):
        """What one rank returned, or the exception it raised, or Died."""
        connection = self._connections[rank]
        assert connection.poll(within_s), f"rank {rank} has not ended after {within_s} s"
        try:
            return connection.recv()
        except EOFError:
            self.processes[rank].join()
            return Died(self.processes[rank].exitcode)

    def ended(self, rank, within_s):
        """Tells whether a rank has an outcome by then."""
        return self._connections[rank].poll(within_s)

    def outcomes(self):
        """The outcome of each rank, by rank."""
        return [self.outcome(rank) for rank in range(len(self.processes))]


def run_ranks(body, size, *args, **options):
    """Outcomes of `body(group, *args)` on `size` ranks, by rank."""
    with Ranks(body, size, *args, **options) as ranks:
        return ranks.outcomes()


def pipe():
    """(receiving, sending) end of a pipe that can be passed to ranks."""
    return CONTEXT.Pipe(duplex=False)
