"""The scheduler keeps nothing of its own: a new one goes on from what the tables know."""

from datetime import timedelta

import pytest

import bodies_chaos
from gmi_drl import runtime
from gmi_drl.runtime.api import session
from killers import Killer, calls_done, wait_while_calls_end

LONG = timedelta(minutes=2)

pytestmark = pytest.mark.timeout(600)  # a hang is found by calls that do not end


@pytest.fixture
def restarts():
    """A runtime, and a block in which its scheduler is replaced again and again."""
    runtime.init(devices=2, num_cpus=4)

    def restart(_):
        session.driver().restart_scheduler()
        return True

    yield lambda seed: Killer(seed, 0.02, lambda: [0], restart, calls_done)
    runtime.shutdown()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 2))]
)
def test_programs_go_on_with_a_new_scheduler(restarts, seed):
    program = bodies_chaos.program(seed, length=80)
    wanted = bodies_chaos.expected(program)
    with restarts(seed) as restarter:
        refs = bodies_chaos.submit(program)
        kept = [refs[index] for index in wanted]
        wait_while_calls_end(kept)
        found = runtime.get(kept, LONG)
    assert restarter.killed > 5
    assert all(map(bodies_chaos.same, found, wanted.values()))
