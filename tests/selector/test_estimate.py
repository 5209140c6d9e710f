"""How fast a run is, from what it says after each iteration: generated runs whose rate is known."""

import random

import pytest

from gmi_drl.selector.tune.profile.estimate import Reading, estimate

STEPS = 1000  # of an iteration


def run(seconds, phases=({},), start_s=0.0):
    """The readings of a run whose iterations take so long each, after a first one of 1 s."""
    readings, at = [Reading(STEPS, start_s + 1.0, phases)], start_s + 1.0
    for number, its in enumerate(seconds, start=2):
        at += its
        readings.append(Reading(number * STEPS, at, phases))
    return readings


def noisy(seed, number, spread, along=0.0):
    """Iterations of 0.1 s; `along`: how much of its deviation each one has from the last."""
    draw, off, found = random.Random(seed), 0.0, []
    for _ in range(number):
        off = along * off + (1 - along**2) ** 0.5 * draw.gauss(0, spread)
        found.append(0.1 * max(0.2, 1 + off))
    return found


@pytest.mark.parametrize("number", [1, 2, 3, 7, 100, 1001])
def test_equal_iterations_give_their_rate(number):
    found = estimate([run([0.25] * number)])
    assert found.steps_per_s == pytest.approx(4000)
    assert found.iterations <= number
    assert found.error == pytest.approx(0.5 if number == 1 else 0.001)


def test_nothing_is_known_before_an_iteration_after_the_first():
    assert estimate([]) is None
    assert estimate([[]]) is None
    assert estimate([run([])]) is None
    assert estimate([run([0.1]), run([])]) is None


def test_a_single_iteration_is_held_against_the_first():
    def error(first_s):
        first = Reading(STEPS, first_s, ())
        return estimate([[first, Reading(2 * STEPS, first_s + 4.0, ())]]).error

    assert error(4.0) == pytest.approx(0.05)
    assert error(5.0) == pytest.approx(0.2)
    assert error(5000.0) == 0.5  # the clock did not begin with the run


def test_slow_first_iterations_are_left_out():
    warm = [0.5, 0.3, 0.2, 0.15, *noisy(1, 16, 0.01)]
    found = estimate([run(warm)])
    assert found.steps_per_s == pytest.approx(10_000, rel=0.02)
    assert found.iterations <= 17
    assert found.is_enough


@pytest.mark.parametrize("along", [0.0, 0.7])
@pytest.mark.parametrize("number", [4, 12, 60, 400])
def test_the_error_is_no_lie(number, along):
    """Two errors hold the true rate in most of the runs, also where neighbours are alike."""
    off = []
    for seed in range(200):
        found = estimate([run(noisy(seed, number, 0.2, along))])
        off.append(abs(found.steps_per_s / 10_000 - 1) / found.error)
    within = sum(one <= 2 for one in off) / len(off)
    assert within >= (0.8 if along == 0 else 0.6)


def test_the_error_shrinks_as_iterations_come():
    errors = [estimate([run(noisy(3, number, 0.2))]).error for number in (10, 40, 160, 640)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02


def test_a_glimpse_is_not_enough_however_alike_iterations_are():
    assert not estimate([run([0.01] * 20)]).is_enough
    assert not estimate([run([0.4] * 2)]).is_enough
    assert estimate([run([0.2] * 3)]).is_enough


def test_streams_add_up_and_others_count_by_their_phases_alone():
    half = [{"simulate": 3.0, "wait": 1.0}], [{"infer": 1.0}]
    streams = [run([0.1] * 10, half[0]), run([0.2] * 5, half[0], start_s=0.3)]
    others = [run([0.1] * 10, half[1])]
    found = estimate(streams, others)
    assert found.steps_per_s == pytest.approx(15_000)
    assert found.phases == pytest.approx({"simulate": 0.5, "wait": 1 / 6, "infer": 1 / 3})


def test_phases_are_shares_over_all_iterations_of_each_gmi():
    early, late = ({"train": 1.0}, {}), ({"train": 1.0, "wait": 2.0}, {"send": 4.0})
    readings = [Reading(n, n, early if n < 2 else late) for n in range(4)]
    shares = estimate([readings]).phases
    assert shares == pytest.approx({"train": 3 / 14, "wait": 2 / 7, "send": 1 / 2})
    assert sum(shares.values()) == pytest.approx(1)


def test_a_run_that_takes_no_time_has_no_rate():
    found = estimate([[Reading(0, 1.0, ()), Reading(10, 1.0, ())]])
    assert (found.steps_per_s, found.phases) == (0.0, {})
