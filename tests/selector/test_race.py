"""Who races, and who wins: the highest return at equal time, not the most steps."""

from dataclasses import asdict
from pathlib import Path

from gmi_drl.selector.record.record import TuneJournal, TuneRecord, read
from gmi_drl.selector.tune.candidate import Ask, Candidate, Chosen, DeviceSplit, Failed, Measured
from gmi_drl.selector.tune.race import (
    RaceScore,
    TrainingCurve,
    curves_of,
    facts_of,
    finalists,
    from_record,
    race,
    return_at,
    scores_of,
)


def candidate(num_env, count=1):
    return Candidate(DeviceSplit(count, "cpu"), num_env, 16, 16 * num_env * count)


def recorded(*rates):
    """Of (num_env, GMIs, steps/s)."""
    return TuneRecord(
        Path(),
        {},
        tuple(
            (
                Ask(candidate(num, count), 1.0),
                Measured(rate, 0.01, 9, 1.0, {}, 1, None, 0.1, 1.0),
            )
            for num, count, rate in rates
        ),
    )


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


def test_finalists_differ_in_the_size_of_their_batch():
    seen = recorded(
        (1024, 2, 9e4), (512, 2, 8.9e4), (1024, 1, 8.8e4), (256, 1, 5e4), (64, 1, 3e4), (8, 1, 9e3)
    )
    found = finalists(seen, candidate(1024, 2))
    assert [(one.num_env, one.row.gmi_per_gpu) for one in found] == [
        (1024, 2), (512, 2), (256, 1), (64, 1),
    ]  # fmt: skip
    assert finalists(recorded((8, 1, 9e3)), candidate(8)) == [candidate(8)]


def test_whom_the_search_passed_over_does_not_race():
    ran = [(candidate(num), 1e4 + num, 0.1) for num in (64, 32, 16, 8)]
    ran += [(candidate(512), 9e4, 0.97)]
    profiles = [
        (Ask(one, 1.0), Measured(rate, 0.01, 9, 1.0, {}, 1, None, memory, 1.0))
        for one, rate, memory in ran
    ]
    profiles.append((Ask(candidate(16), 16.0), Failed("crash", "it died")))
    seen = TuneRecord(Path(), {}, tuple(profiles))
    assert [one.num_env for one in finalists(seen, candidate(64))] == [64, 32, 8]


def test_where_the_batch_is_held_finalists_differ_in_shape():
    same = [
        Candidate(DeviceSplit(g, "cpu"), n, 1024 // n // g, 1024) for n, g in ((64, 1), (64, 2))
    ]
    seen = TuneRecord(
        Path(),
        {},
        tuple((Ask(one, 1.0), Measured(1e4, 0.01, 9, 1.0, {}, 1, None, 0.1, 1.0)) for one in same),
    )
    assert finalists(seen, same[1]) == [same[1], same[0]]


def test_the_better_two_run_again_for_longer_and_return_wins():
    four = [candidate(num) for num in (1024, 512, 256, 64)]
    train = Trainer({1024: 1.0, 512: 2.0, 256: 3.0, 64: 0.5})
    found = race(four, train, 80.0)
    assert found.winner == candidate(256)
    assert train.ran == [
        (1024, 1, 10.0), (512, 1, 10.0), (256, 1, 10.0), (64, 1, 10.0),
        (256, 2, 20.0), (512, 2, 20.0),
    ]  # fmt: skip
    assert sum(seconds for _, _, seconds in train.ran) == 80.0
    assert found.why == "its return was 60.0 after equal time, against 40.0 of the next"


def test_returns_are_compared_at_the_time_that_all_have_trained():
    slow = TrainingCurve(((4.0, 4.0), (9.0, 9.0)), 9.0)
    longer = TrainingCurve(((4.0, 3.0), (8.0, 8.0), (12.0, 99.0)), 12.0)
    assert return_at(longer, 9.0) == 8.0
    assert return_at(longer, 3.0) is None
    found = race([candidate(64), candidate(32)], Trainer({64: slow, 32: longer}), 40.0)
    assert found.winner == candidate(64)


def test_a_run_that_did_all_its_steps_keeps_its_return():
    done = TrainingCurve(((1.0, 10.0), (25.0, 90.0)), 75.0)
    rises = TrainingCurve(((25.0, 50.0), (70.0, 95.0)), 75.0)
    runs = {64: done, 32: rises, 16: Failed("slow", "2.0 of 75.0 s of training after 155 s")}
    found = race([candidate(num) for num in runs], Trainer(runs), 450.0)
    assert found.winner == candidate(32)  # at 25 s it would be the other


def test_what_decided_is_what_is_recorded_and_shown(tmp_path):
    """Not the last return: that of 12 s is more, and the other had 9 s."""
    runs = {64: TrainingCurve(((4.0, 4.0), (9.0, 9.0)), 9.0),
            32: TrainingCurve(((4.0, 3.0), (8.0, 8.0), (12.0, 99.0)), 12.0),
            16: Failed("crash", "it died")}  # fmt: skip
    found = race([candidate(num) for num in runs], Trainer(runs), 54.0)
    first = [(its.candidate.num_env, its.seconds, its.return_mean) for its in found.scores[:3]]
    assert first == [(64, 9.0, 9.0), (32, 9.0, 8.0), (16, 0.0, None)]
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


def test_at_the_ceiling_of_a_task_who_was_there_sooner_wins():
    late = TrainingCurve(((1.0, 20.0), (8.0, 500.0), (10.0, 500.0)), 10.0)
    soon = TrainingCurve(((1.0, 20.0), (3.0, 480.0), (10.0, 498.0)), 10.0)
    found = race([candidate(64), candidate(32)], Trainer({64: late, 32: soon}), 40.0)
    assert found.winner == candidate(32)
    worse = TrainingCurve(((1.0, 400.0), (10.0, 480.0)), 10.0)
    found = race([candidate(64), candidate(32)], Trainer({64: late, 32: worse}), 40.0)
    assert found.winner == candidate(64)


def test_without_a_return_the_choice_by_steps_stands():
    nothing = TrainingCurve((), 10.0)
    two = [candidate(64), candidate(32)]
    found = race(two, Trainer({64: nothing, 32: nothing}), 40.0)
    assert found.winner is None
    assert "no episode ended in 10 s" in found.why
    found = race(two, Trainer({64: Failed("crash", "x"), 32: 1.0}), 40.0)
    assert found.winner == candidate(32)
    assert race(two[:1], Trainer({}), 40.0).winner is None


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
