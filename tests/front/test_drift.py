"""A run that is held against what tuning promised."""

import itertools
import random

import pytest

from gmi_drl.launcher.watch.watch import Drift


def first(drift, speeds, seconds=0.5, steps=0, time_s=0.0):
    """What is found first in a run whose iterations have these speeds, and after how long."""
    for speed in speeds:
        steps, time_s = steps + round(speed * seconds), time_s + seconds
        if found := drift.take(steps, time_s):
            return found, time_s
    return None


def test_a_run_that_keeps_the_promise_is_never_told():
    noise = random.Random(1)
    assert first(Drift(1000), (noise.gauss(1000, 200) for _ in range(4000))) is None
    assert first(Drift(1000), [760] * 1000) is None
    assert first(Drift(1000), [1240] * 1000) is None


@pytest.mark.parametrize(("speed", "said"), [(600, "40% less"), (1500, "50% more")])
def test_a_run_off_by_more_than_a_quarter_is_told_after_four_periods(speed, said):
    found, time_s = first(Drift(1000), [speed] * 1000)
    assert 80 <= time_s <= 81
    assert found.steps_per_s == pytest.approx(speed)
    assert f"{speed:,} steps/s, {said} than the 1,000 that tuning measured" in str(found)


def test_it_is_told_once():
    drift = Drift(1000)
    assert first(drift, [100] * 200)
    assert first(drift, [100] * 1000, steps=10**6, time_s=1e6) is None


def test_a_few_very_slow_iterations_are_no_drift():
    often = itertools.chain.from_iterable([[100], [1000] * 4] * 500)
    assert first(Drift(1000), often) is None


def test_a_busy_minute_in_a_run_that_was_fine_for_an_hour_is_no_drift():
    assert first(Drift(1000), [1000] * 7200 + [500] * 120 + [1000] * 7200) is None


def test_a_busy_minute_at_the_start_of_a_run_is_no_drift():
    assert first(Drift(1000), [600] * 130 + [1000] * 7200) is None
    by_turns = itertools.chain.from_iterable([[500] * 100, [1000] * 60] * 50)  # 50 s busy, 30 not
    assert first(Drift(1000), by_turns) is None


def test_periods_off_to_different_sides_are_no_drift():
    sides = itertools.chain.from_iterable([[500] * 41, [1500] * 41] * 50)
    assert first(Drift(1000), sides) is None


def test_a_machine_that_stays_slow_is_told():
    assert first(Drift(1000), [1000] * 200 + [300] * 2000)


def test_iterations_longer_than_a_period_are_waited_for():
    _, time_s = first(Drift(1000), [500] * 100, seconds=30.0)
    assert time_s == 30 + 4 * 5 * 30  # the first warms up


def test_training_that_goes_back_to_a_checkpoint_begins_to_count_anew():
    drift = Drift(1000)
    assert first(drift, [1] * 150) is None
    assert first(drift, [1000] * 400) is None


def test_a_run_that_goes_on_counts_from_its_own_first_iteration():
    assert first(Drift(1000), [1000] * 400, steps=10**9, time_s=10.0) is None
