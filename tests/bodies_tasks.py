"""Functions and classes that run in other processes in tests of the runtime's tasks and actors."""

import asyncio
import mmap
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from gmi_drl import runtime
from gmi_drl.runtime.api import session
from waits import until


def mark(path):
    """Adds a line to a file: how often something was run is how many there are."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")


def marks(path):
    """How many lines `mark` has written."""
    return Path(path).read_text().count("\n") if Path(path).exists() else 0


def pid_in(path):
    """The pid of who marked the file last; waits for it."""
    until(lambda: marks(path), f"a mark in {path}")
    return int(Path(path).read_text().splitlines()[-1])


def add(a, b=0):
    return a + b


def echo(value):
    return value


def kinds(*args):
    return [type(arg).__name__ for arg in args]


def pid():
    return os.getpid()


def several(number):
    return tuple(range(number))


def where():
    here = runtime.context()
    return here.task_id, here.attempt, here.name


def zeros(length, path=None):
    if path:
        mark(path)
    return np.zeros(length)


def plus(array, number, path=None):
    if path:
        mark(path)
    return array + number


def total(array, path=None):
    if path:
        mark(path)
    return float(array.sum())


def raises(kind, *args):
    raise kind(*args)


def fails_at_first(path, times, kind=ValueError):
    """Raises the first `times` times."""
    mark(path)
    if marks(path) <= times:
        raise kind(f"attempt {marks(path)}")
    return marks(path)


def inner_at_least(actor, least, die):
    """Calls an actor until that answers so much: fails else, or dies."""
    found = runtime.get(actor.add.remote())
    if found < least and die:
        kill_self()
    if found < least:
        raise ValueError(f"{found} is not {least}")
    return found


def dies_at_first(path, times):
    """Kills its process the first `times` times."""
    mark(path)
    if marks(path) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return runtime.context().attempt


def wait_for_file(path, value=None):
    """Ends when the file is there."""
    while not os.path.exists(path):
        time.sleep(0.005)  # between two looks
    return value


def sleeps(path):
    mark(path)
    time.sleep(60)  # until it is cancelled


def cleans_up(path, lock):
    """Is interrupted, then calls an actor and a task, and starts an actor."""
    mark(path)
    try:
        threading.Event().wait(60)
    finally:
        other = runtime.remote(Counter).remote()
        calls = [lock.add.remote(10), runtime.remote(add).remote(1, 2), other.add.remote(3)]
        assert runtime.get(calls) == [10, 3, 3]
        mark(path)


def computes(path):
    mark(path)
    while True:
        pass


def blocks(path, ref):
    mark(path)
    return runtime.get(ref[0])


def swallows(path):
    """Catches its cancellation, and says so."""
    mark(path)
    try:
        time.sleep(60)  # until it is cancelled
    except runtime.TaskCancelledError:
        return "caught"


def get_in_time(ref, timeout):
    return runtime.get(ref[0], timeout)


def depth(levels):
    """A chain of tasks, each of which waits for the next."""
    return 0 if not levels else 1 + runtime.get(runtime.remote(depth).remote(levels - 1))


def fib(n):
    if n < 2:
        return n
    left, right = (runtime.remote(fib).remote(n - i) for i in (1, 2))
    return sum(runtime.get([left, right]))


def tree(levels, path):
    """Starts two tasks at each level; the leaves never end, and say when they are over."""
    mark(f"{path}/{levels}")
    if not levels:
        try:
            time.sleep(60)  # until it is cancelled
        finally:
            mark(f"{path}/over")
    less = runtime.remote(tree).options(num_cpus=0)  # all of them run at once
    runtime.get([less.remote(levels - 1, path) for _ in range(2)])


def submit_ids(number):
    """The ids of what it submits and puts."""
    task = runtime.remote(add)
    refs = [task.remote(1, i) for i in range(number)] + [runtime.put(3)]
    return [ref.id for ref in refs]


def refs_of(number):
    """References to tasks of its own, inside a value."""
    return {"refs": [runtime.remote(add).remote(i, 1) for i in range(number)]}


def put_inside(length):
    return [runtime.put(np.arange(length))]


def in_container(refs):
    """What it gets for references inside a container."""
    return [type(ref).__name__ for ref in refs], runtime.get(refs)


def write_first(array):
    """Tries to change its argument."""
    try:
        array[0] = 7
    except (ValueError, RuntimeError) as error:
        return str(error)
    return float(array[0])


def count_to(number, gate=None, fail_at=None, size=None):
    """Yields the numbers; waits for the file `gate` before the second."""
    for i in range(number):
        if i == fail_at:
            raise ValueError(f"at {i}")
        if gate and i == 1:
            wait_for_file(gate)
        yield i if size is None else np.full(size, i)


def reads_generator(number, read, go):
    """Reads all that `count_to` yields, marks `read`, waits for the file `go`; returns the sum."""
    items = runtime.remote(count_to).remote(number, size=20_000)
    total = sum(float(runtime.get(item)[0]) for item in items)
    runtime.put(total)  # with which it tells what it has dropped
    mark(read)
    wait_for_file(go)
    del items  # it is held until then
    return total


def call_add(actor, number):
    return runtime.get(actor.add.remote(number))


def starts_counter(path=None):
    return runtime.remote(Counter).remote(path)


def named_add(name, number):
    return runtime.get(runtime.get_actor(name).add.remote(number))


def thirty_gigabytes():
    # As np.empty gives it where memory is taken only when it is touched.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, 30 * 2**30, flags=flags), np.uint8)


def closure(number, nbytes):
    """A function that has some bytes with it."""
    kept = np.full(nbytes, number, np.uint8)
    return lambda: kept + 0


def known_functions():
    """How many functions this process was given and knows still."""
    return len(session.running().functions)


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


class Counter:
    """Counts, and writes down each time that one of its methods is run."""

    def __init__(self, path=None, fail=False):
        self.path = path
        self.count = 0
        self.kept = []
        if fail:
            raise ValueError("not built")

    def add(self, number=1):
        if self.path:
            mark(self.path)
        self.count += number
        return self.count

    def pid(self):
        return os.getpid()

    def where(self):
        here = runtime.context()
        return here.actor_id, here.actor_name, here.restarts, here.attempt, here.replayed

    def keep(self, value):
        self.kept.append(value)
        return len(self.kept)

    def get_kept(self):
        return self.kept

    def add_to(self, other, number, path=None):
        if path:
            mark(path)
        return runtime.get(other.add.remote(number))

    def use_one_of_pair(self, other):
        """Calls for two results, and lets one go."""
        first, second = other.count_pair.options(num_returns=2).remote()
        del second
        self.count += runtime.get(first)
        return self.count

    def count_pair(self):
        return self.add(), self.count

    def start_child(self, path):
        self.kept.append(runtime.remote(Counter).options(max_restarts=-1).remote(path))
        return self.kept[-1]

    def add_to_child(self, number):
        return runtime.get(self.kept[-1].add.remote(number))

    def submit(self, path):
        """A nested task, whose result becomes part of the state."""
        self.count += runtime.get(runtime.remote(total).remote(np.ones(10), path))
        return self.count

    def add_slowly(self, number, began, go):
        """Adds at the end: what it does before is lost when it is killed meanwhile."""
        before = self.count
        mark(began)
        wait_for_file(go)
        self.count = before + number
        return self.count

    def array(self, length):
        return np.full(length, self.count)

    def cleans_up(self, path, lock):
        cleans_up(path, lock)

    def raises(self):
        self.count += 1
        raise ValueError(f"count is {self.count}")

    def die(self):
        kill_self()

    def numbers(self, number, gate=None):
        yield from count_to(number, gate)

    def pair(self):
        return self.count, -self.count


class Parent:
    """Starts another actor, and calls it, when it is built."""

    def __init__(self, path):
        self.made_in = runtime.context().actor_name
        self.child = runtime.remote(Counter).remote(path)
        self.first = runtime.get(self.child.add.remote())

    def about(self):
        return self.made_in, self.first, runtime.get(self.child.add.remote(0))

    def child_pid(self):
        return runtime.get(self.child.pid.remote())


class Saves(Counter):
    """Can be saved and restored; the large one has its state in the object store."""

    def __init__(self, path=None, size=1):
        super().__init__(path)
        self.array_ = np.zeros(size)

    def add(self, number=1):
        self.array_ = self.array_ + number
        return super().add(number)

    def save(self):
        return self.count, self.array_, self.kept

    def restore(self, state):
        self.count, self.array_, self.kept = state

    def first(self):
        return float(self.array_[0])


class Meets:
    """Two calls that wait for each other: only if both run at once do they end."""

    def __init__(self, number):
        self.barrier = threading.Barrier(number)

    def meet(self):
        self.barrier.wait(20)
        return threading.get_ident()


class Turns:
    """Async methods that write down when they begin and end."""

    def __init__(self):
        self.turns = []

    async def turn(self):
        self.turns.append("begin")
        for _ in range(3):
            await asyncio.sleep(0)  # others would get their turn
        self.turns.append("end")

    async def history(self):
        return self.turns


class Shadowed:
    """Has an attribute under the name of each of its methods."""

    def __init__(self):
        self.value = self.twice = self.kind = 3

    def value(self):
        return self.value

    @staticmethod
    def twice(number):
        return 2 * number

    @classmethod
    def kind(cls):
        return cls.__name__


class Arguments:
    """Methods of all kinds of parameters."""

    def __init__(self, first, *, second=2):
        pass

    def two(self, a, b=0):
        return a + b

    def named(self, *, a):
        return a

    def anything(self, *args, **kwargs):
        return len(args) + len(kwargs)

    @staticmethod
    def static(a):
        return a


class Async:
    """Methods that take turns."""

    def __init__(self):
        self.event = asyncio.Event()
        self.waiting = 0

    async def wait(self, value):
        self.waiting += 1
        await self.event.wait()
        return value

    async def wait_for_ref(self, refs):
        return await asyncio.to_thread(runtime.get, refs[0])

    async def open(self):
        self.event.set()
        return self.waiting

    async def numbers(self, number):
        for i in range(number):
            await asyncio.sleep(0)  # others get their turn
            yield i

    async def raises(self):
        raise KeyError("async")

    async def where(self):
        await asyncio.sleep(0)  # others get their turn
        return runtime.context().task_id

    def plain(self):
        return self.waiting

    async def echo(self, value):
        return value

    async def cleans_up(self, path, lock):
        mark(path)
        try:
            await self.event.wait()
        finally:
            assert await lock.add.remote(10) == 10
            mark(path)

    async def keeps_the_loop(self, marked, gate):
        mark(marked)
        wait_for_file(gate)

    async def leave(self, code):
        sys.exit(code)


class Leaves:
    """Calls in threads, one of which ends the process."""

    def leave(self, code):
        sys.exit(code)

    def wait(self, marked):
        mark(marked)
        threading.Event().wait()


class AtOnce:
    """Calls in threads."""

    def echo(self, value):
        return value


class Poisoned:
    """Counts, and dies of some calls."""

    def __init__(self, path):
        self.path = path
        self.count = 0

    def add(self, poison=False):
        if poison:
            mark(self.path)
            kill_self()
        self.count += 1
        return self.count

    @runtime.method(max_task_retries=1)
    def twice(self):
        mark(self.path)
        kill_self()


class Pair:
    """Two calls at once, each of which calls another when the gate opens."""

    def calls_late(self, marked, gate):
        mark(marked)
        until(gate.exists, "the gate")
        first = marked.name == "a"
        ref = runtime.remote(add).remote(1) if first else runtime.remote(sleeps).remote(gate)
        mark(marked)
        return ref
