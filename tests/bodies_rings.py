"""What ranks of rings do in tests: they die, hang or fail inside an operation."""

import os
import signal
import threading
import time
from pathlib import Path

import torch

import bodies_comm
import bodies_recovery
from gmi_drl.comm.group.barrier import LEAVING, record
from gmi_drl.comm.reducers import rings


def _strike(group, at, act):
    """Operation number `at` of this process's rings is `act(ring, start)`."""
    run, count = rings.Ring._run, [0]

    def struck(ring, start):
        count[0] += 1
        if count[0] == at:
            act(ring, start)
        run(ring, start)

    rings.Ring._run = struck


def die_in_ring(group, folder, victim, at, begun):
    """Counts together; the first process of `victim` is killed in its operation number `at`."""

    def die(ring, start):
        if begun:
            start(ring._backend)
        os.kill(os.getpid(), signal.SIGKILL)

    if group.rank == victim and group.joined == 0:
        _strike(group, at, die)
    return bodies_recovery.count_together(group, folder)


def hang_in_ring(group, victim):
    """`victim` stops inside a ring; the others reduce."""
    bucket = group.bucket("gradient", 1000)
    bucket.reduce()
    group._barrier.timeout_s = 1.0  # only now: processes may take long to start
    if group.rank == victim:
        _strike(group, 1, lambda *_: threading.Event().wait())
    bucket.reduce()


def interrupted_in_ring(group, victim):
    """`victim` is interrupted inside a ring, as by Ctrl-C."""
    bucket = group.bucket("gradient", 1000)
    bucket.reduce()

    def interrupt(ring, start):
        raise KeyboardInterrupt

    if group.rank == victim:
        _strike(group, 1, interrupt)
    try:
        bucket.reduce()
    except KeyboardInterrupt:
        return "interrupted"


def pause_in_ring(group, victim):
    """`victim` stops inside a ring, and goes on when the others have given up."""
    bucket = group.bucket("gradient", 1000)
    bucket.reduce()
    group._barrier.timeout_s = 1.0  # only now: processes may take long to start
    words = group._memfd.map().cast("Q")

    def pause(ring, start):
        others = set(range(group.size)) - {victim}
        while not all(words[record(rank) + LEAVING] for rank in others):
            time.sleep(0.005)  # between two looks

    if group.rank == victim:
        _strike(group, 1, pause)
    bucket.reduce()


def fail_in_ring(group, victim):
    """`victim`'s ring reports an error, though it lives."""

    def fail(ring, start):
        raise rings.RingFault("the cable was pulled")

    bucket = group.bucket("gradient", 1000)
    bucket.reduce()
    if group.rank == victim:
        _strike(group, 1, fail)
    bucket.reduce()


def refused_a_ring(group, victim):
    """Torch does not make `victim`'s ring, by an error that is no RuntimeError."""

    def refuse(*_):
        raise ValueError("no device for a ring")

    if group.rank == victim:
        rings._gloo = refuse
    group.bucket("gradient", 10).reduce()


def left_after(group, numel):
    """Threads and sockets that are left after a group with rings was closed, and its files."""
    before = _open()
    bucket = group.bucket("gradient", numel)
    bucket.reduce()
    during = _open()
    group.barrier()
    group.close()
    deadline_s = time.monotonic() + 20
    while _open() != before and time.monotonic() < deadline_s:
        time.sleep(0.01)  # connections are closed beside this thread
    return during > before, _open() == before, group.directory.exists()


def _open():
    """How many threads this process has, and how many sockets."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # that of listdir
            continue
    return len(list(Path("/proc/self/task").iterdir())), sum("socket" in link for link in links)


def listening(group):
    """Addresses that this process listens on while its rings are up."""
    group.bucket("gradient", 3).reduce()
    inodes = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is(fd)}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1].partition(":")[0])
    group.barrier()
    return found


def _is(fd):
    return os.path.exists(f"/proc/self/fd/{fd}") or os.path.islink(f"/proc/self/fd/{fd}")


def reduce_many_ways(group, lengths):
    """Sums and means of vectors of each length, twice, and a broadcast and a gather between."""
    found = []
    for op in ("sum", "mean"):
        found += bodies_comm.reduce_each(group, lengths, op)
    rows = bodies_comm.gather_twice(group, 5)[1]
    return found, rows, bodies_comm.broadcast_from_each(group, 7)


def reduce_on_gpu(group, lengths):
    """How far each mean is from what it must be; twice, so that memory is used again."""
    device = torch.device("cuda")
    furthest = []
    for index, numel in enumerate(lengths):
        bucket = group.bucket(f"bucket {index}", numel, device=device)
        host = group.bucket(f"on the host {index}", numel)
        for seed in (index, index + 100):
            own = torch.from_numpy(bodies_comm.vector(group.rank, numel, seed))
            bucket.buffer.copy_(own)
            host.buffer.copy_(own)
            found = bucket.reduce().cpu()
            difference = (found - host.reduce()).abs()
            if seed == index:
                furthest.append(float(difference.max()) if numel else 0.0)
        rows = bucket.gather().cpu()
        assert rows.shape == (group.size, numel)
        assert torch.equal(bucket.broadcast(1).cpu(), host.broadcast(1))
    return furthest
