"""HyperBand: the brackets of its Algorithm 1, who trains on, and that order does not count."""

import random

import pytest

from gmi_drl.placement import RangeConfig
from gmi_drl.selector.search.hyperband import Rung, brackets_of
from gmi_drl.selector.search.hyperband import hyperband as search
from gmi_drl.selector.search.ranges import Ranges

KEY = "algorithm.learning_rate"


def hyperband(**settings):
    ranges = Ranges({KEY: RangeConfig(uniform=(0.0, 1.0))}, seed=1)
    return search(ranges, **{"total_steps": 81, "min_steps": 1, **settings})


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


def test_brackets_are_those_of_the_papers_algorithm_for_81_and_3():
    # Worked by hand from n = ceil(5 / (s + 1) * 3^s); each rung keeps floor(n / 3^i).
    assert brackets_of(81, 1, 3) == [
        (Rung(81, 1), Rung(27, 3), Rung(9, 9), Rung(3, 27), Rung(1, 81)),
        (Rung(34, 3), Rung(11, 9), Rung(3, 27), Rung(1, 81)),
        (Rung(15, 9), Rung(5, 27), Rung(1, 81)),
        (Rung(8, 27), Rung(2, 81)),
        (Rung(5, 81),),
    ]


@pytest.mark.parametrize("power", range(1, 12))
def test_whole_powers_are_not_rounded_down(power):
    # math.log(243, 3) is 4.999...
    assert len(brackets_of(3**power, 1, 3)) == power + 1


@pytest.mark.parametrize(("total", "shortest"), [(1, None), (2, None), (100, 100), (1000, 7)])
def test_every_bracket_ends_with_one_or_more_trials_of_all_steps(total, shortest):
    for rungs in brackets_of(total, shortest, 4):
        assert rungs[-1].steps == total
        assert rungs[-1].trials >= 1
        assert all(rung.steps >= (shortest or 1) for rung in rungs)


def test_the_best_of_each_rung_train_on_from_their_own_checkpoints_and_one_is_found():
    algorithm = hyperband()
    found = run(algorithm, lambda trial_run: -abs(trial_run.values[KEY] - 0.3))
    assert algorithm.done
    assert len(found) == algorithm.total
    for number in range(4):
        rung = [s for s in found.values() if s.bracket == 0 and s.number == number]
        best = sorted(rung, key=lambda trial_run: abs(trial_run.values[KEY] - 0.3))[
            : len(rung) // 3
        ]
        trained_on = {k for k, s in found.items() if s.bracket == 0 and s.number == number + 1}
        assert trained_on == {(trial_run.trial, number + 1) for trial_run in best}
    for trial_run in found.values():
        assert trial_run.start == (
            (trial_run.trial, trial_run.number - 1) if trial_run.number else None
        )
        assert trial_run.values == found[trial_run.trial, 0].values
    winner = found[algorithm.best()]
    assert winner.steps == 81
    assert abs(winner.values[KEY] - 0.3) < 0.03  # of 143 draws; far nearer by chance


@pytest.mark.parametrize("at_once", [2, 5, 50])
def test_the_search_is_the_same_however_many_train_at_once_and_whoever_ends_first(at_once):
    def score(trial_run):
        return (
            None
            if trial_run.trial % 7 == 3
            else (trial_run.values[KEY] * 97 * trial_run.steps) % 1.0
        )

    alone = hyperband()
    wanted = run(alone, score)
    other = hyperband()
    assert run(other, score, at_once, seed=at_once) == wanted
    assert other.best() == alone.best()


def test_who_failed_never_trains_on():
    found = run(
        hyperband(), lambda trial_run: None if trial_run.trial % 2 else float(trial_run.trial)
    )
    assert all(trial_run.trial % 2 == 0 for trial_run in found.values() if trial_run.number)
    nothing = hyperband()
    assert all(trial_run.number == 0 for trial_run in run(nothing, lambda trial_run: None).values())
    assert nothing.done
    assert nothing.best() is None


def test_fewer_brackets_are_the_first_of_all():
    one, all_of_them = hyperband(brackets=1), hyperband()
    found = run(one, lambda trial_run: trial_run.values[KEY])
    assert len(found) == one.total == 81 + 27 + 9 + 3 + 1
    everything = run(all_of_them, lambda trial_run: trial_run.values[KEY])
    assert found.items() <= everything.items()


def test_checkpoints_of_trials_that_cannot_train_on_are_not_kept():
    algorithm = hyperband(brackets=1)
    for count in (81, 27, 9, 3, 1):
        rung = [algorithm.ask() for _ in range(count)]
        rung.sort(key=lambda trial_run: trial_run.values[KEY])
        for trial_run in rung[:-1]:
            algorithm.tell(trial_run, trial_run.values[KEY])
        last = [one for one in rung[-1:] if one.start is not None]
        best = [trial_run.key for trial_run in rung[:-1][-(count // 3) :]] if count > 1 else []
        before = {trial_run.start for trial_run in last}  # that the one which trains began with
        assert algorithm.kept() - {algorithm.best()} == {*best, *before} - {algorithm.best()}
        algorithm.tell(rung[-1], rung[-1].values[KEY])
    assert algorithm.kept() == {algorithm.best()}
