"""When a finalist of a race is done, or given up: by a clock and records that the test makes."""

import pytest

from gmi_drl.gmi.usage import processes
from gmi_drl.selector.tune.candidate import Failed
from gmi_drl.selector.tune.profile import candidate_run
from gmi_drl.selector.tune.profile import profiler as racing
from watches import PATIENCE, Clock, Gang, Meter


@pytest.fixture
def run(monkeypatch):
    """Plays (seconds from now, seconds trained or None) to the watch of a race of 10 s."""
    clock = Clock()
    monkeypatch.setattr(racing, "time", clock)
    monkeypatch.setattr(candidate_run, "time", clock)

    def play(script, works=True):
        meter, gang = Meter(clock), Gang()
        meter.busy, meter.worked_s = {0: float(works)}, {0: clock.now}
        watch = racing._RaceWatch(10.0, PATIENCE, meter)
        for after_s, trained_s in script:
            clock.now += after_s
            if trained_s is not None:
                watch.show({"kind": "iteration", "time_s": trained_s, "return_mean": 7.0})
            try:
                watch.tick(gang)
            except racing.StopRun:
                assert gang.killed == 1
                return watch.failed or watch.trained()
        return None

    return play


def steady(iterations, every_s=0.5):
    return [(every_s, n * every_s) for n in range(1, iterations + 1)]


def test_it_is_over_when_it_has_trained_for_its_seconds(run):
    found = run([(15.0, None), *steady(100)])
    assert found.seconds == 10.0
    assert len(found.points) == 20


@pytest.mark.parametrize(("works", "reason"), [(True, "slow"), (False, "hang")])
def test_one_that_stops_after_an_iteration_has_failed_and_is_not_compared(run, works, reason):
    failed = run([*steady(1), *[(1.0, None)] * 60], works)
    assert failed.reason == reason
    assert failed.text.startswith("an iteration has not ended after 6 s")


def test_one_of_which_no_iteration_ends_says_how_long_it_was_waited_for(run):
    failed = run([(1.0, None)] * 60)
    assert failed.reason == "slow"
    assert failed.text.startswith("the first iteration has not ended after 21 s")
    assert run([(1.0, None)] * 60, works=False).reason == "hang"


def test_iterations_may_take_as_long_as_those_before(run):
    assert run([(4.0, 4.0), *[(1.0, None)] * 10, (1.0, 15.0)]).seconds == 15.0


def test_training_that_counts_too_little_of_the_clock_ends_too(run):
    failed = run([(1.0, 0.01 * n) for n in range(1, 100)])
    assert failed == Failed("slow", "0.3 of 10.0 s of training after 26 s")


def test_memory_that_runs_low_ends_it(run, monkeypatch):
    monkeypatch.setattr(processes, "host_memory", lambda: processes.HostMemory(1 << 28, 64 << 30))
    assert run(steady(100)).reason == "memory"
