"""PBT: the toy problem of its paper, who goes on from whom, who waits, and what is kept."""

import random

import pytest

from gmi_drl.placement import RangeConfig
from gmi_drl.selector.search.pbt import PopulationBased
from gmi_drl.selector.search.ranges import Ranges

WHICH = "algorithm.which"
TOY = {WHICH: RangeConfig(choice=((1.0, 0.0), (0.0, 1.0)))}
NUMBER = {"algorithm.x": RangeConfig(uniform=(0.0, 1.0))}


def train_toy(point, which, steps, rate=0.01):
    """Gradient ascent on the surrogate 1.2 - (h0 x^2 + h1 y^2)."""
    for _ in range(steps):
        point = tuple(p - rate * 2 * h * p for p, h in zip(point, which, strict=True))
    return point


def score_toy(point):
    """What is wanted: 1.2 - (x^2 + y^2)."""
    return 1.2 - sum(p * p for p in point)


@pytest.mark.parametrize("seed", range(10))
def test_a_population_solves_the_toy_problem_that_no_fixed_setting_solves(seed):
    # Jaderberg et al., section 4.1: from (0.9, 0.9), either surrogate leaves one variable as it is.
    steps, interval = 400, 10
    fixed = [score_toy(train_toy((0.9, 0.9), h, steps)) for h in TOY[WHICH].choice]
    algorithm = PopulationBased(Ranges(TOY, seed), steps, seed=seed, population=2,
                           interval_steps=interval)  # fmt: skip
    reached = {}
    while trial_run := algorithm.ask():
        begin = (0.9, 0.9) if trial_run.start is None else reached[trial_run.start]
        reached[trial_run.key] = train_toy(begin, trial_run.values[WHICH], interval)
        algorithm.tell(trial_run, score_toy(reached[trial_run.key]))
    assert max(fixed) == pytest.approx(1.2 - 0.81, abs=1e-3)
    assert score_toy(reached[algorithm.best()]) > 1.1


def population(seed=5, **settings):
    settings = {"population": 10, "interval_steps": 10, "truncation": 0.2,
                "synchronous": True, **settings}  # fmt: skip
    return PopulationBased(Ranges(NUMBER, seed), 50, seed=seed, **settings)


def run(algorithm, score, at_once=1, seed=0):
    """All runs by key; of those that run at once any may end first."""
    chance, running, found = random.Random(seed), [], {}
    while True:
        while len(running) < at_once and (trial_run := algorithm.ask()):
            assert trial_run.start is None or trial_run.start in algorithm.kept()
            running.append(trial_run)
        if not running:
            return found
        trial_run = running.pop(chance.randrange(len(running)))
        found[trial_run.key] = trial_run
        algorithm.tell(trial_run, score(trial_run))


def value(trial_run):
    return trial_run.values["algorithm.x"]


def test_the_worst_fifth_goes_on_from_the_best_fifth_with_changed_values():
    found = run(population(), value)
    assert len(found) == 50
    for generation in range(4):
        ranked = [trial_run for trial_run in found.values() if trial_run.number == generation]
        ranked.sort(
            key=lambda trial_run: (value(trial_run), -trial_run.trial)
        )  # of equals the first is best
        worst, best = ({s.trial for s in part} for part in (ranked[:2], ranked[-2:]))
        for trial_run in ranked:
            after = found[trial_run.trial, generation + 1]
            assert after.steps == 10 * (generation + 2)
            if trial_run.trial in worst:
                assert after.start[0] in best
                assert after.start[1] == generation
            else:
                assert after.start == trial_run.key
                assert after.values == trial_run.values
    first, last = ([value(s) for s in found.values() if s.number == n] for n in (0, 4))
    assert min(last) > min(first)


@pytest.mark.parametrize("at_once", [2, 3, 10])
def test_the_search_is_the_same_however_many_train_at_once_and_whoever_ends_first(at_once):
    def score(trial_run):
        return None if (trial_run.trial + trial_run.number) % 4 == 3 else value(trial_run)

    assert run(population(), score, at_once, seed=at_once) == run(population(), score)
    assert run(population(), score) != run(population(seed=6), score)


def test_a_member_that_failed_goes_on_from_one_of_the_best():
    found = run(
        population(), lambda trial_run: None if trial_run.key == (4, 1) else value(trial_run)
    )
    assert found[4, 2].start[0] != 4
    assert all(trial_run.start != (4, 1) for trial_run in found.values())


def test_it_is_over_when_all_have_failed():
    algorithm = population()
    found = run(algorithm, lambda trial_run: None if trial_run.number == 2 else value(trial_run))
    assert max(trial_run.number for trial_run in found.values()) == 2
    assert algorithm.done
    assert found[algorithm.best()].number == 1  # the last that there is a policy of


def test_the_last_interval_is_what_is_left():
    found = run(
        PopulationBased(Ranges(NUMBER, 0), 45, seed=0, population=2, interval_steps=20), value
    )
    assert sorted({trial_run.steps for trial_run in found.values()}) == [20, 40, 45]


@pytest.mark.parametrize("at_once", [1, 3, 10])
def test_nobody_is_waited_for_and_the_worst_still_follow_the_best(at_once):
    """Held together by `run`: what is gone on from is kept, whoever ends first."""
    found = run(population(synchronous=False), value, at_once, seed=at_once)
    assert len(found) == 50
    followed = [s for s in found.values() if s.start is not None and s.start[0] != s.trial]
    assert followed
    for its in followed:  # from better ones, of as many steps
        assert value(found[its.start]) > value(found[its.trial, its.number - 1])
        assert found[its.start].steps == found[its.trial, its.number - 1].steps
    first, last = ([value(s) for s in found.values() if s.number == n] for n in (0, 4))
    assert min(last) > min(first)


def test_one_that_does_not_end_holds_up_nobody_and_is_then_compared_with_all():
    def rest(algorithm):
        (slow, *others), at = [algorithm.ask() for _ in range(10)], 0
        for trial_run in others:
            algorithm.tell(trial_run, value(trial_run))
        while trial_run := algorithm.ask():
            at = trial_run.number
            algorithm.tell(trial_run, value(trial_run))
        return slow, at

    held = population()
    _, at = rest(held)
    assert at == 0
    algorithm = population(synchronous=False)
    slow, at = rest(algorithm)
    assert at == 4  # all others have come to the end
    assert not algorithm.done
    kept = algorithm.kept()
    algorithm.tell(slow, -1.0)
    after = algorithm.ask()
    assert after.start in kept
    assert after.start[0] != slow.trial
    assert after.start[1] == 0


def test_a_search_that_was_killed_asks_for_the_same_when_it_is_told_the_same():
    """The journal has what was asked and told, in that order; see `replay`."""
    chance, events, running = random.Random(3), [], []
    algorithm = population(synchronous=False)
    while not algorithm.done:
        while len(running) < 4 and (trial_run := algorithm.ask()):
            running.append(trial_run)
            events.append((trial_run, None))
        ended = running.pop(chance.randrange(len(running)))
        events.append((ended, value(ended) if chance.random() < 0.8 else float("nan")))
        algorithm.tell(ended, None if events[-1][1] != events[-1][1] else events[-1][1])
    again = population(synchronous=False)
    for trial_run, score in events:
        if score is None:
            assert again.ask() == trial_run
        else:
            again.tell(trial_run, None if score != score else score)
    assert (again.best(), again.kept()) == (algorithm.best(), algorithm.kept())
