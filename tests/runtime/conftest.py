"""A runtime for the tests of a file; those about starting and ending it have their own.

With GMI_DRL_TEST_ENGINE=ray in the environment it is one on a Ray cluster, and `runtime_engines.py`
says what is different there.
"""

import gc
import time
from pathlib import Path

import pytest

import runtime_engines
from gmi_drl import runtime
from gmi_drl.runtime.api import session
from runtime_engines import ON_RAY, begin, end
from waits import until


def pytest_collection_modifyitems(items):
    if ON_RAY:
        for item in items:
            different = runtime_engines.DIFFERENT.get(Path(item.path).name, {})
            if reason := different.get(item.name) or different.get(item.originalname):
                item.add_marker(pytest.mark.skip(reason=f"engine ray: {reason}"))


@pytest.fixture(scope="module")
def running():
    begin()
    yield
    end()


@pytest.fixture
def start(running):
    """Starts actors that are gone after the test: `start(Class, *args, option=...)`."""
    started = []

    def start_one(cls, *args, **options):
        handle = runtime.remote(cls).options(**options).remote(*args)
        started.append(handle)
        return handle

    yield start_one
    runtime.kill(started)


@pytest.fixture(scope="module")
def _two_cpus_for_all():
    begin(num_cpus=2, object_store_bytes=256 << 20)
    yield
    end()


@pytest.fixture
def shared(_two_cpus_for_all):
    """A runtime with two CPUs, one for many tests of a file; nothing may be held after each."""
    if not runtime.is_initialized():
        begin(num_cpus=2, object_store_bytes=256 << 20)
    yield session.driver()
    try:
        nothing_held()
    except AssertionError:  # the tests after this one are not to blame
        runtime.shutdown()
        raise


@pytest.fixture
def stopped():
    """No runtime, before the test and after it."""
    if ON_RAY:
        pytest.skip("engine ray: the test starts engine local")
    runtime.shutdown()
    yield
    runtime.shutdown()


def nothing_held():
    """Waits until the tables of the runtime are empty, and fails if they do not become so."""
    driver = session.driver()
    if ON_RAY:
        nothing_held_on_ray(driver.objects.entries)
        return
    references = driver.objects.references

    def living():
        runtime.records()  # those of the dead keep them in the table
        return {actor.id: actor for actor in driver.actors.table.values() if not actor.dead}

    tables = {
        "object": lambda: {id: slot.call for id, slot in driver.objects.slots.items()},
        "thing is held": lambda: references._holders,
        "holder": lambda: references._keys,
        "task": lambda: driver.tasks.live,
        "task of the scheduler's": lambda: driver.scheduler._tasks,
        "actor of the scheduler's": lambda: driver.scheduler._actors,
        "living actor": living,
        "name": lambda: driver.actors.names,
        "byte in memory": lambda: driver.objects.store.used_bytes,
        "byte on disk": lambda: driver.objects.store.spilled_bytes,
    }
    for name, table in tables.items():

        def empty(table=table):
            driver.post(int)  # what was dropped is looked at with the next command
            return not table()

        def left(table=table):
            found = table()
            if isinstance(found, dict):
                found = [(key, what, references._holders.get(key)) for key, what in found.items()]
            return str(found)[:1000]

        for _ in range(20):
            if empty():
                break
            time.sleep(0.002)  # what was dropped just now is on its way
        else:
            gc.collect()  # a full one takes long
        until(empty, f"no {name} left", 2, left)


def nothing_held_on_ray(entries):
    """Waits until this process has no reference and no handle."""

    def empty():
        if entries:
            gc.collect()
        return not entries

    until(empty, "nothing held", 10, lambda: str({e.slot.call: e.count for e in entries.values()}))
