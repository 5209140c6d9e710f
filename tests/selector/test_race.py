"""Who races, and who wins: what learns faster in both rounds, or what was predicted to."""

import random
from dataclasses import asdict

import pytest

from gmi_drl.selector.errors import TuneError
from gmi_drl.selector.record.record import TuneJournal, read
from gmi_drl.selector.tune.candidate import Ask, Candidate, Chosen, DeviceSplit, Failed, Measured
from gmi_drl.selector.tune.race import (
    RaceScore,
    TrainingCurve,
    curves_of,
    facts_of,
    finalists,
    from_record,
    race,
    scores_of,
)
from gmi_drl.selector.tune.session import choose_by_rule


def candidate(num_env, count=1):
    return Candidate(DeviceSplit(count, "cpu"), num_env, 16, 16 * num_env * count)


TWO = [candidate(64), candidate(32)]


def rising(rate, seconds=10.0, step=1.0):
    points = [(step * n, rate * step * n) for n in range(1, int(seconds / step) + 1)]
    return TrainingCurve(tuple(points), seconds)


class Trainer:
    """Trains by a table of what return rises by in a second, and notes for how long."""

    def __init__(self, rates):
        self.rates, self.ran = rates, []

    def __call__(self, one, seconds, number):
        self.ran.append((one.num_env, number, seconds))
        rate = self.rates[one.num_env]
        return rate if isinstance(rate, (Failed, TrainingCurve)) else rising(rate, seconds)


def test_finalists_are_the_predicted_best_the_config_as_given_and_others_unlike_them():
    best, own = candidate(64, 2), candidate(16)
    rivals = [candidate(48, 2), candidate(96), candidate(32, 2), own, candidate(128)]
    found = finalists(best, own, rivals, 1000.0)
    assert found == [best, own, candidate(96), candidate(32, 2)]  # 48 is too near to 64
    assert finalists(best, candidate(8), rivals, 1000.0)[1] == candidate(96)  # own: no rival
    assert finalists(best, own, rivals, 32.0) == [best, own]  # 8 s each in the first round
    assert finalists(best, own, rivals, 31.0) == []
    assert finalists(best, None, [], 1000.0) == [best]


def test_another_wins_that_leads_both_rounds():
    four = [candidate(num) for num in (1024, 512, 256, 64)]
    train = Trainer({1024: 1.0, 512: 2.0, 256: 3.0, 64: 0.5})
    found = race(four, train, 80.0)
    assert found.winner == candidate(256)
    assert train.ran == [
        (1024, 1, 10.0), (512, 1, 10.0), (256, 1, 10.0), (64, 1, 10.0),
        (1024, 2, 20.0), (256, 2, 20.0),
    ]  # fmt: skip
    assert sum(seconds for _, _, seconds in train.ran) == 80.0
    assert found.why == (
        "it led both rounds of the race, with a mean return of 30.1, against 10.0 of what was "
        "predicted to be best"
    )


def test_what_was_predicted_to_be_best_stays_unless_it_loses_twice():
    def train(one, seconds, number):
        return rising(2.0 if (one.num_env == 64) == (number == 1) else 1.0, seconds)

    found = race([candidate(32), candidate(64)], train, 40.0)
    assert found.winner is None
    assert found.why == "another led the first round of the race, and not the second"
    led = race([candidate(64), candidate(32)], Trainer({64: 2.0, 32: 1.0}), 40.0)
    assert led.winner == candidate(64)
    assert {score.round for score in led.scores} == {1}
    assert led.why == "it led the race, with a mean return of 10.1"


def test_returns_that_do_not_rise_decide_nothing():
    flat = TrainingCurve(((1.0, -200.0), (10.0, -195.0)), 10.0)
    found = race([candidate(64), candidate(32)], Trainer({64: flat, 32: flat}), 40.0)
    assert found.winner is None
    assert found.why == "no return rose in 10 s of training"


def test_noise_is_no_rise_and_one_that_is_soon_over_is_one():
    """CartPole's random policy has 22 in the mean of 100 episodes; the first that end are short."""
    draw = random.Random(0).gauss
    for _ in range(50):
        for count in (16, 40):  # points of a slow machine, and of another
            values = [14.6, 17.8, *(draw(22.0, 0.9) for _ in range(count))]
            still = TrainingCurve(tuple((0.2 * n, v) for n, v in enumerate(values, 1)), 8.4)
            assert not race(TWO, Trainer({64: still, 32: still}), 40.0).moved
    learned = [20.0, 250.0, *[500.0] * 40]  # after a twentieth of the time
    soon = TrainingCurve(tuple((0.2 * n, v) for n, v in enumerate(learned, 1)), 8.4)
    assert race(TWO, Trainer({64: soon, 32: soon}), 40.0).moved


def test_returns_are_compared_over_the_time_that_all_have_trained():
    slow = TrainingCurve(((4.0, 4.0), (9.0, 9.0)), 9.0)
    longer = TrainingCurve(((4.0, 3.0), (8.0, 8.0), (12.0, 99.0)), 12.0)
    found = race([candidate(64), candidate(32)], Trainer({64: slow, 32: longer}), 40.0)
    assert found.winner == candidate(64)
    # In 9 s: 4 until the first point, and 6.5 in the mean until the second; the other alike.
    wanted = [(4 * 4.0 + 5 * 6.5) / 9, (4 * 3.0 + 4 * 5.5 + 8.0) / 9]
    assert [score.return_mean for score in found.scores] == pytest.approx(wanted)
    assert found.scores[1].seconds == 9.0


def test_who_was_there_sooner_wins_and_what_follows_the_last_return_counts_for_nothing():
    soon = TrainingCurve(((1.0, 10.0), (5.0, 80.0), (25.0, 90.0)), 75.0)
    late = TrainingCurve(((1.0, 10.0), (20.0, 95.0)), 75.0)
    runs = {64: soon, 32: late, 16: Failed("slow", "2.0 of 75.0 s of training after 155 s")}
    found = race([candidate(num) for num in runs], Trainer(runs), 450.0)
    assert found.winner == candidate(64)
    assert {score.seconds for score in found.scores} == {25.0, 0.0}
    further = TrainingCurve(((1.0, 10.0), (6.0, 300.0)), 75.0)
    found = race([candidate(64), candidate(32)], Trainer({64: soon, 32: further}), 450.0)
    assert found.winner == candidate(32)


def test_what_decided_is_what_is_recorded_and_shown(tmp_path):
    """Not the last return: that of 12 s is more, and the other had 9 s."""
    runs = {64: TrainingCurve(((4.0, 4.0), (9.0, 9.0)), 9.0),
            32: TrainingCurve(((4.0, 3.0), (8.0, 8.0), (12.0, 99.0)), 12.0),
            16: Failed("crash", "it died")}  # fmt: skip
    found = race([candidate(num) for num in runs], Trainer(runs), 54.0)
    assert found.winner == candidate(64)
    first = [(its.candidate.num_env, its.seconds, its.return_mean) for its in found.scores[:3]]
    assert first == [(64, 9.0, 48.5 / 9), (32, 9.0, 42 / 9), (16, 0.0, None)]
    assert found.scores[2].text == "it died"
    record, _ = TuneJournal.open(tmp_path / "r.jsonl", {}, anew=False)
    for num, run in runs.items():
        record.raced(candidate(num), facts_of(run, 9.0, 1, 12.0))
    record.raced(candidate(8), facts_of(runs[64], 9.0, 1, 12.0))  # of another race
    assert scores_of(record.record)[1] == RaceScore(1, candidate(32), 12.0, 99.0)  # so far
    won = Chosen(found.winner, None, (), True)
    record.chose(won, {"raced": True, "judged": [asdict(score) for score in found.scores]})
    seen = read(record.path)
    assert tuple(scores_of(seen)) == found.scores
    ends = {line["candidate"].num_env: line["points"][-1] for line in curves_of(seen)}
    assert ends == {64: [9.0, 9.0], 32: [8.0, 8.0]}
    record.chose(won, {"raced": False})  # later, and without a race
    assert scores_of(read(record.path)) == []


NOTHING = TrainingCurve((), 10.0)


def by_round(**rounds):
    """Trains by what each candidate does in each round: a_64 in the first, b_64 in the second."""

    def train(one, seconds, number):
        its = rounds["ab"[number - 1] + f"_{one.num_env}"]
        return rising(its, seconds) if isinstance(its, float) else its

    return train


def test_without_a_return_the_choice_by_steps_stands():
    found = race(TWO, Trainer({64: NOTHING, 32: NOTHING}), 40.0)
    assert found.winner is None
    assert "no episode ended in 10 s" in found.why


def test_a_return_that_rises_twice_beats_a_prediction_that_shows_none():
    found = race(TWO, by_round(a_64=NOTHING, a_32=1.0, b_64=NOTHING, b_32=2.0), 40.0)
    assert found.winner == candidate(32)
    assert found.why == (
        "it led both rounds of the race, with a mean return of 10.1, while what was predicted to "
        "be best showed no return, as no episode ended"
    )


def test_a_return_that_does_not_rise_says_nothing_against_a_prediction_that_shows_none():
    flat = TrainingCurve(((1.0, 100.0), (9.0, 101.0)), 10.0)
    found = race(TWO, by_round(a_64=NOTHING, a_32=1.0, b_64=NOTHING, b_32=flat), 40.0)
    assert found.winner is None
    assert found.why == "another led the first round of the race, and not the second"
    three = [*TWO, candidate(8)]  # the last one rises, and is behind the second
    found = race(three, by_round(a_64=NOTHING, a_32=flat, a_8=1.0), 60.0)
    assert found.winner is None
    assert found.why == "no episode of it ended, and the return that was best did not rise"


def test_a_prediction_whose_return_is_seen_in_the_longer_round_alone_is_judged_by_it():
    ahead = race(TWO, by_round(a_64=NOTHING, a_32=1.0, b_64=3.0, b_32=2.0), 40.0)
    assert ahead.winner is None
    behind = race(TWO, by_round(a_64=NOTHING, a_32=1.0, b_64=1.0, b_32=2.0), 40.0)
    assert behind.winner == candidate(32)


def test_what_fails_in_a_race_is_not_chosen():
    dead, flat = Failed("crash", "x"), TrainingCurve(((1.0, 5.0), (9.0, 5.0)), 10.0)
    found = race(TWO, Trainer({64: dead, 32: 1.0}), 40.0)
    assert found.winner == candidate(32)
    assert found.why.startswith("what was predicted to be best has failed in the race, and it led")
    for run, told in ((flat, "no return rose in 10 s"), (NOTHING, "no episode ended in 10 s")):
        found = race(TWO, Trainer({64: dead, 32: run}), 40.0)
        assert found.winner == candidate(32)
        assert f"has failed in the race, and {told}" in found.why
    found = race(TWO, by_round(a_64=1.0, a_32=2.0, b_64=dead, b_32=NOTHING), 40.0)
    assert (found.winner, found.why) == (
        candidate(32), "it led the first round of the race, and in the second the other failed",
    )  # fmt: skip
    found = race(TWO, Trainer({64: dead, 32: dead}), 40.0)
    assert (found.winner, found.why) == (None, "all that raced have failed")


def test_where_both_fail_in_the_second_round_the_best_of_the_others_is_chosen():
    dead = Failed("memory", "none left")
    rates = {"a_64": 1.0, "a_32": 2.0, "b_64": dead, "b_32": dead}
    found = race(TWO, by_round(**rates), 40.0)
    assert (found.winner, found.why, found.moved) == (None, "all that raced have failed", False)
    assert found.all_failed
    four = [*TWO, candidate(8), candidate(4)]
    found = race(four, by_round(**rates, a_8=0.2, a_4=0.5), 80.0)
    assert found.winner == candidate(4)
    assert found.why == (
        "both have failed that raced in the second round, and it was the best of the others"
    )


def test_what_did_not_race_is_chosen_where_all_that_did_have_failed(tmp_path):
    journal, _ = TuneJournal.open(tmp_path / "r.jsonl", {}, anew=False)
    raced = race(TWO, Trainer(dict.fromkeys((64, 32), Failed("memory", "none left"))), 40.0)
    chosen = Chosen(TWO[0], TWO[1], (), True)
    measured = Measured(1e4, 0.01, 9, 1.5, {}, 1 << 30, None, 0.1, 1.9)
    for one in TWO:
        journal.profiled(Ask(one, 1.5), measured, 2.0)
    with pytest.raises(TuneError, match="when they trained for longer: none left"):
        choose_by_rule(journal.record, None, chosen, None, raced)
    journal.profiled(Ask(candidate(8), 1.5), measured, 2.0)
    found = choose_by_rule(journal.record, None, chosen, None, raced)
    assert found.winner == candidate(8)
    assert found.why.startswith("all that raced have failed, and of those")


def test_what_was_raced_is_recalled_for_the_same_round_and_time(tmp_path):
    record, _ = TuneJournal.open(tmp_path / "r.jsonl", {}, anew=False)
    one, run = candidate(64), rising(2.0)
    record.raced(one, facts_of(run, 10.0, 1, 12.0))
    record.raced(one, facts_of(Failed("memory", "none left"), 20.0, 2, 3.0))
    for seen in (record.record, read(record.path)):
        assert from_record(seen, one, 10.0, 1) == run
        assert from_record(seen, one, 20.0, 2) == Failed("memory", "none left")
        assert from_record(seen, one, 11.0, 1) is None
        assert from_record(seen, candidate(32), 10.0, 1) is None
        assert seen.spent_s == 15.0
