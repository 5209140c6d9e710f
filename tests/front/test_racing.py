"""When a finalist of a race is done, or given up: by a clock and records that the test makes."""

import pytest

from gmi_drl.gmi.usage import processes
from gmi_drl.placement import GmiSpec, Layout, Topology
from gmi_drl.selector.tune.candidate import Failed
from gmi_drl.selector.tune.profile import candidate_run
from gmi_drl.selector.tune.profile import profiler as racing
from gmi_drl.selector.tune.profile.candidate_run import CandidateTimeout

PATIENCE = CandidateTimeout(first_s=20.0, next_s=5.0, idle_s=8.0)


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


class Meter:
    """One GMI, at work as long as the test lets it."""

    def __init__(self, clock, works):
        self.clock, self.busy, self.worked_s = clock, {0: 1.0 if works else 0.0}, {0: clock.now}

    def look(self, gang):
        if self.busy[0]:
            self.worked_s[0] = self.clock.now


class Gang:
    asked_to_stop = False
    killed = 0
    gmis = (GmiSpec(0, 0, ("simulator", "agent", "trainer"), "cpu", (0,), 4),)
    layout = Layout("tcg_ex", Topology.from_cores([0]), gmis)

    def kill(self):
        self.killed += 1


@pytest.fixture
def run(monkeypatch):
    """Plays (seconds from now, seconds trained or None) to the watch of a race of 10 s."""
    clock = Clock()
    monkeypatch.setattr(racing, "time", clock)
    monkeypatch.setattr(candidate_run, "time", clock)

    def play(script, works=True):
        watch, gang = racing._RaceWatch(10.0, PATIENCE, Meter(clock, works)), Gang()
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
