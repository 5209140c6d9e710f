"""Calls that a worker was given ahead, and gives back before it has begun them."""

from datetime import timedelta

import pytest

import bodies_tasks as bodies
import stops
from gmi_drl import runtime
from gmi_drl.runtime.api import session

LONG = timedelta(seconds=30)


def test_a_task_that_its_worker_gives_back_after_it_was_cancelled_is_never_run(stopped, tmp_path):
    """The fork server sleeps: there are a call, a recall and a cancellation when it wakes."""
    runtime.init(num_cpus=1)
    driver, server = session.driver(), runtime.preloaded(LONG).pid
    with stops.stopped(server):
        sleep = runtime.remote(bodies.sleeps)
        calls = [sleep.remote(tmp_path / name) for name in "ab"]
        workers = driver.scheduler._workers
        bodies.until(lambda: any(one.recalled for one in list(workers.values())), "a recall")
        for call in calls:
            runtime.cancel(call)
    for call in calls:
        with pytest.raises(runtime.TaskCancelledError):
            runtime.get(call, LONG)
    assert runtime.get(runtime.remote(bodies.add).remote(1), LONG) == 1
    bodies.until(lambda: not driver.scheduler._tasks, "nothing left with the scheduler")
