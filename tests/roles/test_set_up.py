"""Who has said that it is set up: by process, with a deadline that names the late one."""

from datetime import timedelta

import pytest

from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.placement import Device, Topology, tcg_ex
from gmi_drl.roles.errors import SetUpTimeout
from gmi_drl.roles.role import readiness

SOON = timedelta(milliseconds=50)


@pytest.fixture
def tally():
    """Of two GMIs whose first processes run."""
    tally = create_tally(2, ("lives", "set_up", "begun")).open()
    tally[0, "lives"] = tally[1, "lives"] = 1
    return tally


def test_one_that_is_late_is_named(tally):
    readiness.say(tally, 0)
    with pytest.raises(SetUpTimeout, match=r"gmi 1 .*after 0\.05 s") as late:
        readiness.wait_for_all(tally, (0, 1), SOON)
    assert late.value.gmi_id == 1
    readiness.say(tally, 1)
    readiness.wait_for_all(tally, (0, 1), SOON)


def test_one_that_is_lost_for_good_is_not_waited_for(tally):
    readiness.wait_for_all(tally, (0, 1), stop=lambda: True)


def test_a_new_process_is_not_set_up_until_it_says_so(tally):
    readiness.say(tally, 0)
    assert readiness.is_set_up(tally, 0)
    tally[0, "lives"] += 1
    assert not readiness.is_set_up(tally, 0)
    readiness.say(tally, 0)
    assert readiness.is_set_up(tally, 0)
    readiness.take_back(tally, 0)
    assert not readiness.is_set_up(tally, 0)


def test_a_run_that_has_begun_has_begun(tally):
    layout = tcg_ex(Topology((Device(0, "cpu", "group 0", (0, 1)),)), 2, 8)
    start = readiness.Start(tally, layout)
    readiness.say(tally, 0)
    assert not start.look()
    readiness.say(tally, 1)
    assert start.look()
    tally[1, "lives"] += 1
    assert start.look()
