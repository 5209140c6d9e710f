"""Random programs whose results are known, and what they are made of.

A program is a list of steps, each a call with values of earlier steps. `expected` computes it here,
with plain Python; `submit` on the runtime. Everything in it depends on its arguments alone, and an
actor's answers say how many calls it had before: so results tell of a call that was lost, run
twice, or out of its turn.
"""

import ctypes
import os
import random
import signal
import time
from dataclasses import dataclass

import numpy as np

from gmi_drl import runtime
from gmi_drl.runtime.api import session

_PRIME = (1 << 61) - 1
SIZES = (0, 0, 0, 7, 500, 20_000)  # 0: an int; the last one lies in the object store


def number(value):
    """One number for any value of a program."""
    if isinstance(value, np.ndarray):
        return (int(value.sum()) * 31 + len(value)) % _PRIME
    if isinstance(value, (list, tuple)):
        return sum(number(one) * (i + 3) for i, one in enumerate(value)) % _PRIME
    return int(value) % _PRIME


def make(salt, size):
    """A value of some size."""
    if not size:
        return salt % _PRIME
    return np.arange(size, dtype=np.int64) * (salt % 1_000_003) + salt % 7


def mix(salt, size, *values):
    time.sleep(salt % 3 / 1000)  # so that kills hit while it runs
    return make(salt * 7 + number(values), size)


def pair(salt, size, *values):
    """Two results; those of a program are large and small in all combinations."""
    return mix(salt, size, *values), mix(salt + 1, SIZES[salt % len(SIZES)], *values)


def items(salt, size, *values):
    """A generator of three."""
    for index in range(3):
        yield mix(salt + index, size, *values)


def inside(salt, size, refs):
    """Gets its values itself; they come inside a list."""
    values = runtime.get(refs) if refs and isinstance(refs[0], runtime.ObjectRef) else refs
    return mix(salt, size, *values)


def spread(salt, size, *values):
    """Calls itself, in other processes, a few levels deep."""
    if salt % 4 == 0:
        return mix(salt, size, *values)
    parts = [
        _task(spread).remote(salt // 4 + index, size if index else 0, *values)
        for index in range(salt % 4)
    ]
    return mix(salt, size, runtime.get(parts))


def spread_here(salt, size, *values):
    """What `spread` gives."""
    if salt % 4 == 0:
        return mix(salt, size, *values)
    parts = [
        spread_here(salt // 4 + index, size if index else 0, *values) for index in range(salt % 4)
    ]
    return mix(salt, size, parts)


def through(salt, size, actor, *values):
    """Calls an actor that only it calls, in order."""
    answers = runtime.get([actor.add.remote(salt + i, size, *values) for i in range(3)])
    return mix(salt, size, *answers)


def through_here(salt, size, actor, *values):
    """What `through` gives."""
    return mix(salt, size, *[actor.add(salt + i, size, *values) for i in range(3)])


def stopped():
    """Stops its process, as a debugger would: it does nothing any more, and hears nobody."""
    os.kill(os.getpid(), signal.SIGSTOP)


class Stopped:
    def stop(self):
        stopped()


class Hung(Stopped):
    def pid(self):
        return os.getpid()

    def spin(self):
        while True:
            pass

    def hold_the_gil(self):
        ctypes.PyDLL(None).sleep(1000)


class Tally:
    """Answers depend on all calls before, and on their order."""

    def __init__(self, start):
        self.total = start
        self.calls = 0

    def add(self, salt, size, *values):
        self.calls += 1
        self.total = (self.total * 31 + salt + number(values)) % _PRIME
        time.sleep(salt % 3 / 1000)  # so that kills hit while it runs
        return self.calls, make(self.total, size)


class SavingTally(Tally):
    """The same, with checkpoints; those of a large one lie in the object store."""

    def __init__(self, start, weight=0):
        super().__init__(start)
        self.weight = np.arange(weight)

    def save(self):
        return self.total, self.calls, self.weight

    def restore(self, state):
        self.total, self.calls, weight = state
        assert len(weight) == len(self.weight)
        self.weight = weight


def _task(function, **options):
    return runtime.remote(function).options(max_retries=-1, **options)


HERE = {"mix": mix, "pair": pair, "items": items, "inside": inside, "spread": spread_here,
        "through": through_here}  # fmt: skip
THERE = {"mix": mix, "pair": pair, "items": items, "inside": inside, "spread": spread,
         "through": through}  # fmt: skip
RESULTS = {"pair": 2, "items": 3}


@dataclass(frozen=True)
class Step:
    """One call: of a function, a method ("call"), or put ("put")."""

    what: str
    salt: int
    size: int
    inputs: tuple[int, ...]  # which earlier values
    actor: int = -1


@dataclass(frozen=True)
class Program:
    """Steps, the actors they call, and which values are looked at in the end."""

    steps: tuple[Step, ...]
    actors: tuple[tuple[int, int, int], ...]  # (start, checkpoint_every, weight of the state)
    kept: frozenset[int]


def program(seed, length=150, actors=4, lineage=False, streams=True):
    """A random program.

    `lineage`: every value can be made again after it was lost, by the functions that made it. So
    all that was put is kept, no function gives a large value to another one inline, and none calls
    an actor, which would go on from its new state.
    `streams`: with generators, whose items are waited for while it is submitted.
    """
    rng = random.Random(seed)
    kinds = ["mix"] * 5 + ["pair", "inside", "spread", "put", "call", "call", "call"]
    kinds += ["items"] if streams else []
    kinds += [] if lineage else ["through"]
    made = [
        (rng.randrange(1000), rng.choice((0, 0, 3, 10)), rng.choice((0, 20_000)))
        for _ in range(actors)
    ]
    steps, num_values = [], 0
    for _ in range(length):
        what = rng.choice(kinds)
        recent = range(max(0, num_values - 30), num_values)
        inputs = tuple(rng.choices(recent, k=rng.choice((0, 1, 1, 2, 3)))) if recent else ()
        if lineage and what == "spread":
            inputs = ()
        actor = -1
        if what == "call":
            actor = rng.randrange(actors)
        elif what == "through":
            actor = len(made)
            made.append((rng.randrange(1000), rng.choice((0, 2)), 0))
        sizes = SIZES[:-1] if lineage and what == "call" else SIZES
        steps.append(Step(what, rng.randrange(1000), rng.choice(sizes), inputs, actor))
        num_values += RESULTS.get(what, 1)
    kept = frozenset(rng.sample(range(num_values), num_values if lineage else num_values // 3))
    return Program(tuple(steps), tuple(made), kept)


def expected(program):
    """The values that are looked at, computed here: {index: value}."""
    actors = [Tally(start) for start, *_ in program.actors]
    values = []
    for step in program.steps:
        given = [values[index] for index in step.inputs]
        salt, size = step.salt, step.size
        if step.what == "put":
            values.append(make(salt, size))
        elif step.what == "call":
            values.append(actors[step.actor].add(salt, size, *given))
        elif step.what == "through":
            values.append(through_here(salt, size, actors[step.actor], *given))
        elif step.what == "inside":
            values.append(inside(salt, size, given))
        elif step.what in RESULTS:
            values.extend(HERE[step.what](salt, size, *given))
        else:
            values.append(HERE[step.what](salt, size, *given))
    return {index: values[index] for index in program.kept}


def _start(start, every, weight):
    cls = runtime.remote(SavingTally if every else Tally)
    return cls.options(max_restarts=-1, checkpoint_every=every).remote(
        start, *((weight,) if every else ())
    )


def submit(program):
    """References to the values that are looked at; the others are dropped as soon as may be."""
    actors = [_start(*about) for about in program.actors]
    last_use = {}
    for number_, step in enumerate(program.steps):
        last_use.update(dict.fromkeys(step.inputs, number_))
    refs, count = {}, 0
    for number_, step in enumerate(program.steps):
        given = [refs[index] for index in step.inputs]
        salt, size = step.salt, step.size
        if step.what == "put":
            new = [runtime.put(make(salt, size))]
        elif step.what == "call":
            new = [actors[step.actor].add.remote(salt, size, *given)]
        elif step.what == "through":
            new = [_task(through).remote(salt, size, actors[step.actor], *given)]
        elif step.what == "inside":
            new = [_task(inside).remote(salt, size, given)]
        elif step.what == "items":
            new = list(_task(items).remote(salt, size, *given))
        elif step.what == "pair":
            new = _task(pair, num_returns=2).remote(salt, size, *given)
        else:
            new = [_task(THERE[step.what]).remote(salt, size, *given)]
        for ref in new:
            refs[count] = ref
            count += 1
        for index in list(refs):
            if last_use.get(index, -1) <= number_ and index not in program.kept:
                del refs[index]
    return refs


def same(found, wanted):
    """Whether two values of programs are equal, type and all."""
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, np.ndarray):
        return isinstance(found, np.ndarray) and np.array_equal(found, wanted)
    return type(found) is type(wanted) and found == wanted


def load_for_ever(path, replicas, seed):
    """Runs programs until it is killed, and says how many calls are safely recorded."""
    runtime.init(devices=2, num_cpus=4, gcs=path, gcs_replicas=replicas)
    gcs = session.driver().gcs
    for offset in range(1_000_000):
        refs = submit(program(seed + offset, length=20))
        done = session.driver().tasks.num_done
        gcs.flush(30)
        print(done, flush=True)
        runtime.get(list(refs.values()), 60)
