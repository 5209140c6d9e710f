"""Random programs give the same results whatever is killed while they run."""

import os
from datetime import timedelta

import pytest

import bodies_chaos
from gmi_drl import runtime
from gmi_drl.runtime.api import session
from killers import Killer, kill_child, lose, wait_while_calls_end
from waits import until

LONG = timedelta(minutes=2)

pytestmark = pytest.mark.timeout(600)  # a hang is found by calls that do not end


@pytest.fixture
def two_devices():
    runtime.init(devices=2, num_cpus=4)
    yield
    runtime.shutdown()


@pytest.fixture
def little_memory():
    runtime.init(num_cpus=2, object_store_bytes=6 << 20)  # programs that keep all need more
    yield
    runtime.shutdown()


def check(program):
    """Runs it, compares all that it keeps, and sees that nothing stays of it."""
    wanted = bodies_chaos.expected(program)
    refs = bodies_chaos.submit(program)
    wait_while_calls_end(refs.values())
    for index, value in wanted.items():
        got = runtime.get(refs[index], LONG)  # one at a time: they may be more than fits in memory
        assert bodies_chaos.same(got, value), f"value {index}: {got} instead of {value}"
    del refs, got
    until_nothing_is_kept()


def until_nothing_is_kept():
    def kept():
        return _kept(session.driver())

    until(lambda: not kept(), "nothing kept", LONG.total_seconds(), kept)


def _kept(driver):
    objects = driver.objects
    found = [slot.call for slot in list(objects.slots.values())]
    found += [task.name for task in list(driver.tasks.live.values())]
    found += [actor.name for actor in driver.all_actors() if not actor.dead]
    found += ["memory"] if objects.store.used_bytes else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_random_programs_give_what_plain_python_gives(two_devices, seed):
    check(bodies_chaos.program(seed, length=100))


@pytest.mark.slow
def test_programs_give_the_same_while_workers_and_actors_are_killed(two_devices):
    _until_killed(0, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 300])
def test_programs_give_the_same_while_their_values_go_to_disk_and_processes_are_killed(
    little_memory, seed
):
    spilled = []
    store, spill = session.driver().objects.store, session.driver().objects._spill
    session.driver().objects._spill = lambda one: (spilled.append(one), spill(one))
    with Killer(seed, 0.8) as killer:
        while killer.killed < 3 or len(spilled) < 5:
            check(bodies_chaos.program(seed, length=400, lineage=True))
            seed += 1000
    assert store.spilled_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100])
def test_programs_give_the_same_under_dozens_of_kills(two_devices, seed):
    _until_killed(seed, 50)


def _until_killed(seed, kills):
    with Killer(seed) as killer:
        while killer.killed < kills:
            check(bodies_chaos.program(seed, length=100))
            seed += 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 400])
def test_programs_give_the_same_while_fork_servers_are_killed(two_devices, seed):
    def targets():  # each costs all that runs
        driver = session.driver()
        ready = driver.ready.done and killer.killed < 3
        return [driver.server.process.pid] if ready else []

    with Killer(seed, 0.2, targets, lambda pid: kill_child(pid, os.getpid())) as killer:
        while killer.killed < 3:
            check(bodies_chaos.program(seed, length=50))
            seed += 1000


def test_lost_values_are_made_again_from_their_lineage_and_no_others(two_devices):
    task = runtime.remote(bodies_chaos.mix)
    first = task.options(device=1).remote(1, 20_000)
    second = task.options(device=1).remote(2, 20_000, first)
    third = task.options(device=0).remote(3, 20_000, second)
    before = runtime.get([first, second, third], LONG)
    done = session.driver().tasks.num_done
    lose(first, second)
    after = runtime.get([first, second, third], LONG)
    assert all(map(bodies_chaos.same, after, before))
    assert session.driver().tasks.num_done == done + 2
