"""The tuner on a made-up machine and clock: budget, record, resume, and what goes wrong."""

from functools import partial

import pytest

from gmi_drl.selector.errors import BudgetTooShort, NothingMeasured
from gmi_drl.selector.record.record import TuneJournal, read
from gmi_drl.selector.tune.algorithms.default import default
from gmi_drl.selector.tune.algorithms.paper import paper
from gmi_drl.selector.tune.candidate import (
    Ask,
    Candidate,
    Chosen,
    DeviceSplit,
    Failed,
    Measured,
    Space,
)
from gmi_drl.selector.tune.search_driver import run_search

LADDER = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
SPACE = Space(
    tuple(
        tuple(Candidate(DeviceSplit(count, "cpu"), num, 16, 16 * num * count) for num in LADDER)
        for count in (1, 2, 4)
    )
)
START_S = 1.5


class Quiet:
    """A listener that keeps what it is told."""

    def __init__(self):
        self.asked, self.recalled, self.left_s = [], [], []

    def asks(self, ask, left_s):
        self.asked.append(ask.candidate)

    def answers(self, ask, answer, *, recalled, left_s):
        self.left_s.append(left_s)
        if recalled:
            self.recalled.append(ask.candidate)


class Killed(BaseException):
    """The tuner's process goes."""


class Machine:
    """Rises and saturates; two GMIs are best. A profile takes START_S and what is asked for."""

    def __init__(self, dies_at=None):
        self.now_s, self.asks, self.dies_at = 0.0, [], dies_at

    def __call__(self, ask):
        if len(self.asks) == self.dies_at:
            raise Killed
        self.asks.append(ask)
        self.now_s += START_S + ask.seconds
        return self.answer(ask.candidate, ask.seconds)

    def answer(self, one, seconds):
        count, num = one.row.gmi_per_gpu, one.num_env
        rate = {1: 1.0, 2: 1.6, 4: 1.2}[count] * 1e4 * num / (num + 64)
        return Measured(rate, 0.01, 9, seconds, {"train": 1.0}, 1 << 30, None, num / 4096, 1.0)

    def clock(self):
        return self.now_s


class Failing(Machine):
    """One whose environment raises from 512 on."""

    def answer(self, one, seconds):
        if one.num_env >= 512:
            return Failed("crash", "ValueError: no more than 511")
        return super().answer(one, seconds)


class Shrinking(Machine):
    """Another program takes ever more of the memory while tuning goes on."""

    def answer(self, one, seconds):
        there = max(0.05, 1.0 - 0.12 * len(self.asks))
        used = one.num_env * one.row.gmi_per_gpu / 1024
        if used > there:
            return Failed("memory", f"{used:.0%} of what there was")
        found = super().answer(one, seconds)
        return Measured(**{**vars(found), "memory": used / there})


def as_search(steps):
    """A search of a function that has its asks answered."""
    return lambda space, seconds: partial(steps, space, seconds)


def tuned(path, machine, budget_s=1e3, search=default, listener=None):
    record, _ = TuneJournal.open(path, {}, anew=False)
    return run_search(
        search(SPACE, 1.0), SPACE, machine, record, budget_s, listener=listener or Quiet(),
        clock=machine.clock,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "r.jsonl"


@pytest.mark.parametrize("search", [default, paper])
def test_the_best_is_found_and_everything_is_on_record(path, search):
    machine = Machine()
    found = tuned(path, machine, search=search)
    assert found.chosen.winner.row.gmi_per_gpu == 2
    assert found.chosen.complete
    assert not found.left_out
    assert [ask for ask, _ in read(path).profiles] == machine.asks
    assert read(path).spent_s == pytest.approx(machine.now_s)


@pytest.mark.parametrize("search", [default, paper])
def test_killed_at_any_ask_it_goes_on_and_measures_nothing_twice(tmp_path, search):
    whole = Machine()
    expected = tuned(tmp_path / "whole", whole, search=search)
    for dies_at in range(1, len(whole.asks)):
        path, first, listener = tmp_path / str(dies_at), Machine(dies_at), Quiet()
        with pytest.raises(Killed):
            tuned(path, first, search=search)
        second = Machine()
        assert tuned(path, second, search=search, listener=listener) == expected
        assert first.asks + second.asks == whole.asks
        assert listener.recalled == [ask.candidate for ask in first.asks]


@pytest.mark.parametrize("search", [default, paper])
def test_the_budget_ends_the_search_and_counts_what_is_on_record(path, search):
    machine = Machine()
    found = tuned(path, machine, 12.0, search=search)
    assert not found.chosen.complete
    assert machine.now_s <= 12.0
    tried = len({ask.candidate for ask in machine.asks})
    assert f"the search ended with its budget of 12 s: {tried} of 27" in found.left_out
    assert "a longer one goes on from here" in found.left_out
    again = Machine()
    assert tuned(path, again, 12.0, search=search) == found
    assert not again.asks
    on = Machine()
    assert tuned(path, on, search=search).chosen.complete
    assert on.asks
    assert not {ask.candidate for ask in on.asks[:1]} & {ask.candidate for ask in machine.asks}


def test_a_budget_for_less_than_one_profile_says_what_one_takes(path):
    with pytest.raises(BudgetTooShort, match=r"tune.budget_s=0.5; one measurement needs 1.0 s"):
        tuned(path, Machine(), 0.5)
    for _ in range(2):  # the second is told by the record
        with pytest.raises(BudgetTooShort, match=r"tune.budget_s=2; one measurement took 2.5 s"):
            tuned(path, Machine(), 2.0)
    assert tuned(path, Machine(), 8.0).chosen.winner is not None


@pytest.mark.parametrize("search", [default, paper])
def test_an_environment_that_fails_from_512_on_ends_rows_below(path, search):
    machine = Failing()
    found = tuned(path, machine, search=search)
    assert found.chosen.winner.row.gmi_per_gpu == 2
    assert found.chosen.winner.num_env < 512
    for its in SPACE.rows:  # what is as large as one that failed is not tried
        failed = [c.num_env for a in machine.asks if (c := a.candidate) in its and c.num_env >= 512]
        assert failed == sorted(set(failed), reverse=True)


def test_where_memory_shrinks_the_winner_is_one_that_still_fits(path):
    found = tuned(path, Shrinking())
    profiles = read(path).profiles
    last = [answer for ask, answer in profiles if ask.candidate == found.chosen.winner][-1]
    assert isinstance(last, Measured)
    assert any(isinstance(answer, Failed) for _, answer in profiles)


def test_when_all_fail_the_reasons_are_listed(path):
    class Broken(Machine):
        def answer(self, one, seconds):
            return Failed("crash", "ModuleNotFoundError: no module named 'mine'")

    with pytest.raises(NothingMeasured, match=r"(?s)nothing could be measured.*named 'mine'"):
        tuned(path, Broken())
    mended = Machine()
    assert tuned(path, mended).chosen.winner is not None


def test_the_last_ask_gets_what_is_left_and_stays_the_ask_that_it_was(path):
    @as_search
    def two(space, seconds, measure):
        first, second = space.rows[0][:2]
        measure(Ask(first, seconds))
        answer = measure(Ask(second, 4 * seconds))
        assert answer is not None
        return Chosen(first, None, (), True)

    machine = Machine()
    tuned(path, machine, 6.0, search=two)  # of which 2.5 are used, and 1.5 go for a start
    assert [ask.seconds for ask in machine.asks] == [1.0, 2.0]
    assert machine.now_s == 6.0
    assert [ask.seconds for ask, _ in read(path).profiles] == [1.0, 4.0]
    again = Machine()
    tuned(path, again, 6.0, search=two)
    assert not again.asks


class Slow(Machine):
    """One where 64 environments and more need three seconds."""

    def answer(self, one, seconds):
        if one.num_env >= 64 and seconds < 3:
            return Failed("slow", f"no iteration in {seconds:.1f} s")
        return super().answer(one, seconds)


def test_too_slow_for_what_was_left_is_asked_again_with_more_and_not_with_as_little(path):
    @as_search
    def two(space, seconds, measure):
        measure(Ask(space.rows[0][0], seconds))
        answer = measure(Ask(space.rows[0][4], 16 * seconds))
        assert not isinstance(answer, Failed)  # of 16 s nothing is known
        return Chosen(space.rows[0][0], None, (), isinstance(answer, Measured))

    machine = Slow()
    first = tuned(path, machine, 6.0, search=two)
    assert [ask.seconds for ask in machine.asks] == [1.0, 2.0]
    assert not first.chosen.complete  # it is no answer to what was asked
    assert [ask.seconds for ask, _ in read(path).profiles] == [1.0, 2.0]
    again = Slow()
    assert tuned(path, again, 6.0, search=two).chosen == first.chosen
    assert not again.asks
    longer = Slow()
    assert tuned(path, longer, 600.0, search=two).chosen.complete
    assert [ask.seconds for ask in longer.asks] == [16.0]


def test_who_waits_longer_asks_again_for_what_was_too_slow(path):
    @as_search
    def one(space, seconds, measure):
        answer = measure(Ask(space.rows[0][4], seconds))
        return Chosen(space.rows[0][0], None, (), isinstance(answer, Measured))

    def found(machine, waits_s):
        record, _ = TuneJournal.open(path, {}, anew=False)
        run_search(
            one(SPACE, 1.0), SPACE, machine, record, 60.0, listener=Quiet(),
            clock=machine.clock, waits_s=waits_s,
        )  # fmt: skip
        return len(machine.asks)

    tuned(path, Machine(), search=lambda space, s: paper(Space((SPACE.rows[0][:1],)), s))
    assert [found(Slow(), waits_s) for waits_s in (60.0, 60.0, 30.0, 120.0, 120.0)] == [
        1,
        0,
        0,
        1,
        0,
    ]


@pytest.mark.parametrize("search", [default, paper])
def test_a_longer_budget_with_longer_looks_measures_nothing_twice(path, search):
    """What is certain needs no longer look; what is not asked for again is not charged."""
    short, listener = Machine(), Quiet()
    first = tuned(path, short, 12.0, search=lambda space, s: search(space, 0.5 * s))
    assert not first.chosen.complete
    before = read(path)
    machine = Machine()
    found = tuned(path, machine, 60.0, search=search, listener=listener)
    assert len(listener.recalled) >= 2
    assert not {ask.candidate for ask in machine.asks} & {ask.candidate for ask in short.asks}
    costs_s = [
        cost_s
        for (ask, _), cost_s in zip(before.profiles, before.costs_s, strict=True)
        if ask.candidate in listener.recalled
    ]
    assert found.spent_s == pytest.approx(sum(costs_s) + machine.now_s)
    assert listener.left_s[-1] == pytest.approx(60.0 - found.spent_s)


def test_what_is_no_longer_asked_for_costs_nothing(path):
    """Unsure answers do not stand for longer looks, and are not charged; nor is a race."""

    class Unsure(Machine):
        def answer(self, one, seconds):
            found = super().answer(one, seconds)
            return Measured(**{**vars(found), "error": 0.2})

    tuned(path, Unsure(), 12.0, search=lambda space, s: paper(space, 0.5))
    record, _ = TuneJournal.open(path, {}, anew=False)
    record.raced(SPACE.rows[0][0], {"round": 1, "cost_s": 1e3})
    machine, listener = Machine(), Quiet()
    found = tuned(path, machine, 12.0, search=paper, listener=listener)
    assert not listener.recalled
    assert found.spent_s == pytest.approx(machine.now_s)
    assert len(machine.asks) > 3


def test_a_search_with_fewer_profiles_than_it_may_need_is_not_complete(path):
    def few(space, seconds):
        return default(space, seconds, profiles=4)

    found = tuned(path, Machine(), search=few)
    assert not found.chosen.complete
    assert "4 of 27 candidates were measured" in found.left_out
    whole = tuned(path, Machine(), search=lambda space, s: default(space, s, profiles=8))
    assert whole.chosen.complete


def test_what_is_refused_at_once_does_not_make_starts_free(path):
    class Odd(Machine):
        def __call__(self, ask):
            if ask.candidate.num_env == LADDER[1]:
                self.asks.append(ask)
                return Failed("refused", "odd")
            return super().__call__(ask)

    machine = Odd()
    tuned(path, machine, 12.0, search=paper)
    assert machine.now_s <= 12.0
    assert read(path).around_s == pytest.approx(START_S)


def test_a_longer_look_is_not_answered_by_a_shorter_one(path):
    @as_search
    def twice(space, seconds, measure):
        first = space.rows[0][0]
        measure(Ask(first, seconds))
        answer = measure(Ask(first, 8 * seconds))
        assert answer is not None
        return Chosen(first, None, (), True)

    machine = Machine(dies_at=1)
    with pytest.raises(Killed):
        tuned(path, machine, search=twice)
    machine, listener = Machine(), Quiet()
    tuned(path, machine, search=twice, listener=listener)
    assert [ask.seconds for ask in machine.asks] == [8.0]
    machine = Machine()
    tuned(path, machine, search=twice)
    assert not machine.asks
