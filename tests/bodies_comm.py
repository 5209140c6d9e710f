"""What ranks of reducer groups do in tests; imported by name in their processes."""

import os
import signal
import threading
import weakref
from pathlib import Path

import numpy as np
import torch

from gmi_drl.comm import CommError, Mailbox, assert_identical
from gmi_drl.comm.shm import futex


def vector(rank, numel, seed, dtype="float32"):
    """What `rank` contributes: any process can tell what any other has."""
    generator = np.random.default_rng((seed, rank))
    return generator.standard_normal(numel).astype(dtype)


def _dtype(name):
    return getattr(torch, name)


def reduce_each(group, lengths, op="mean", dtype="float32"):
    """The reduction of one vector of each length, a bucket each."""
    found = []
    for index, numel in enumerate(lengths):
        bucket = group.bucket(f"bucket {index}", numel, _dtype(dtype))
        bucket.buffer.copy_(torch.from_numpy(vector(group.rank, numel, index, dtype)))
        found.append(bucket.reduce(op).numpy().copy())
    return found


def reduce_equal(group, numel):
    bucket = group.bucket("equal", numel)
    bucket.buffer.copy_(torch.from_numpy(vector(0, numel, 1)))
    mean = bucket.reduce("mean").clone()
    total = bucket.reduce("sum")
    furthest = float((mean - bucket.buffer).abs().max())
    return furthest, float((total - group.size * mean).abs().max())


def gather_twice(group, numel):
    """What two gathers in a row give, the first read after the second was prepared."""
    bucket = group.bucket("rows", numel, torch.float64)
    bucket.buffer.fill_(group.rank)
    first = bucket.gather()
    bucket.buffer.fill_(10 + group.rank)  # must not show in what others still read
    group.barrier()
    seen = first.numpy().copy()
    return seen, bucket.gather().numpy().copy()


def broadcast_from_each(group, numel):
    bucket = group.bucket("parameters", numel)
    found = []
    for src in range(group.size):
        bucket.buffer.fill_(100 * src + group.rank)
        found.append(bucket.broadcast(src).numpy().copy())
    return found


def many_reductions(group, numel, times, uneven):
    """Reductions as fast as they go, every number of every result compared with what it must be.

    Ranks run in and out of step: with `uneven`, rank r does extra work before some of its calls.
    Returns how many results were wrong.
    """
    bucket = group.bucket("gradient", numel)
    other = group.bucket("statistics", 7, torch.float64)
    ranks = np.arange(group.size)
    wrong = 0
    ballast = np.zeros(20_000)
    for step in range(times):
        bucket.buffer.fill_(float(step * group.size + group.rank))
        result = bucket.reduce("sum")
        if uneven and (step + group.rank) % group.size == 0:
            ballast += 1.0  # others are already writing their next contribution
        wrong += not bool((result == float((step * group.size + ranks).sum())).all())
        if step % 5 == 0:
            other.buffer.fill_(step + group.rank)
            rows = other.gather()
            other.buffer.fill_(-1.0)
            wrong += not bool((rows == torch.arange(group.size).view(-1, 1) + step).all())
    return wrong


def wait_then_reduce(group, gate):
    """A rank with a gate reduces when it opens."""
    bucket = group.bucket("gradient", 1000)
    bucket.buffer.fill_(group.rank + 1)
    if gate is not None:
        gate.recv()
    result = bucket.reduce("sum").clone()
    return float(result[0]), bool((result == result[0]).all())


def meet_after_gate(group, gate):
    """A rank with a gate meets the others when it opens; one that has come back meets nobody."""
    if group.joined == 0:
        if gate is not None:
            gate.recv()
        group.barrier()


def exchange_twice(group):
    """Exchanges and makes a bucket, in whatever generation it finds."""
    group.reform()
    group.exchange(1)
    group.bucket("gradient", 10)
    threading.Event().wait()


def late_rank(group, gate):
    """A rank without a gate reduces and times out; the others arrive when it has given up."""
    bucket = group.bucket("gradient", 10)
    group._barrier.timeout_s = 1.0  # only now: processes may take long to start
    if gate is not None:
        gate.recv()
    bucket.reduce()


def ready_then_hang(group, ready, hanging):
    """Rank `hanging` says that it is ready and does nothing more; the others reduce."""
    bucket = group.bucket("gradient", 100)
    group._barrier.timeout_s = 1.5  # only now: processes may take long to start
    if group.rank == hanging:
        ready.send(True)
        threading.Event().wait()
    bucket.reduce()


def different_numel(group):
    group.bucket("gradient", 100 + (group.rank == 1))


def different_names(group):
    group.bucket("first", 4)
    group.bucket("second" if group.rank else "third", 4)


def different_dtypes(group):
    group.bucket("gradient", 4, torch.float64 if group.rank else torch.float32)


def different_order(group):
    buckets = [group.bucket("a", 4), group.bucket("b", 4)]
    for bucket in buckets if group.rank == 0 else reversed(buckets):
        bucket.reduce()


def different_op(group):
    group.bucket("a", 4).reduce("sum" if group.rank else "mean")


def different_source(group):
    group.bucket("a", 4).broadcast(group.rank)


def different_step(group):
    """The last rank believes to be one reduction further than the others."""
    bucket = group.bucket("gradient", 4)
    bucket.reduce()
    bucket._calls += group.rank == group.size - 1
    bucket.reduce()


def mismatch_again(group):
    """After a mismatch the group is over: the same error, at once."""
    try:
        different_op(group)
    except CommError as error:
        first = str(error)
    try:
        group.barrier()
    except CommError as error:
        return first == str(error)
    return None


def closes_early(group):
    group.barrier()
    if group.rank == 0:
        group.close()
    else:
        group.barrier()


def two_buckets(group):
    """Buckets of two sizes and types, used in turn, and a third made in between."""
    small = group.bucket("small", 3, torch.float64)
    large = group.bucket("large", 100_003)
    small.buffer.fill_(group.rank)
    large.buffer.fill_(group.rank + 0.5)
    first = small.reduce("sum").clone()
    again = large.reduce("mean").clone()
    late = group.bucket("late", 600_000)
    late.buffer.fill_(2.0)
    third = late.reduce("sum").clone()
    return (
        first.tolist(),
        float(again.min()),
        float(again.max()),
        float(third.min()),
        float(small.result[0]),
    )


def gradients_in_place(group):
    """Autograd adds straight into the shared slot; the reduction is the gradient of all data."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, 3))
    data = torch.arange(group.size * 4 * 3, dtype=torch.float32).view(-1, 3).sin()
    bucket = group.bucket("gradient", weight.numel())
    weight.grad = bucket.buffer.view_as(weight)
    (data.chunk(group.size)[group.rank] @ weight.T).square().mean().backward()
    assert weight.grad.data_ptr() == bucket.buffer.data_ptr()
    mine = bucket.reduce("mean").view_as(weight).clone()
    weight.grad = None
    (data @ weight.T).square().mean().backward()
    return float((mine - weight.grad).abs().max())


def compare_parameters(group, changed, sizes=(4, 6, 2)):
    """Checks parameters of which `changed` (rank -> index of the number) differ."""
    flat = torch.arange(float(sum(sizes)))
    if group.rank in changed:
        flat[changed[group.rank]] += 1e-6 * (flat[changed[group.rank]] + 1)
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    assert_identical(group, flat, ["bias", "weight", "log_std"], offsets, 50)


def compare_names(group):
    assert_identical(group, torch.zeros(4), [f"w{group.rank}"], [0], 7)


def left_open(group, numel):
    """Names of descriptors and threads that this process has after using a group."""
    group.bucket("gradient", numel).reduce()
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _open(fd)]
    return [n for n in names if "/dev/shm" in n], threading.active_count()


def _open(fd):
    return os.path.exists(f"/proc/self/fd/{fd}")


def exchange_ranks(group):
    return group.exchange(group.rank + 2**63)


def pass_round(group, folder):
    """Tensors go round the ring three times; each rank adds its rank."""
    with Mailbox(Path(folder), group.rank) as mailbox:
        left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
        for turn in range(3):
            if group.rank == 0:
                mailbox.send(right, {"turn": turn, "data": torch.zeros(50_000)})
            message = mailbox.recv(left)
            message["data"] += group.rank
            if group.rank != 0:
                mailbox.send(right, message)
        group.barrier()
        return bool((message["data"] == sum(range(group.rank + 1 if group.rank else 3))).all())


def open_and_die(group, folder):
    Mailbox(Path(folder), 0)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_with_a_message_to_the_dead(group, folder):
    """Leaves a mailbox without closing it, as sys.exit does; returns whether it was let go."""
    sender, dead = Mailbox(Path(folder), 0), Mailbox(Path(folder), 1)
    for context in (dead._outgoing, dead._incoming):
        context.destroy(0)
    dead._path.touch()  # as if its process were killed
    sender.send(1, "lost")
    gone = weakref.ref(sender)
    del sender
    return gone() is None


def without_wake_ups(group, times):
    """Reductions when no wake-up ever gets through."""
    futex.Futex.wake = lambda self: None
    bucket = group.bucket("gradient", 1000)
    bucket.buffer.fill_(1.0)
    for _ in range(times):
        total = bucket.reduce("sum")
    return float(total.sum())


def without_futexes(group, times):
    """Reductions on a machine whose futex system call is not known."""
    futex._NUMBER = -1
    return without_wake_ups(group, times)
