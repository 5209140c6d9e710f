"""Machines that are made up are what they say: reproducible, honest about their noise, varied."""

import math
import statistics
from itertools import pairwise

import pytest

from gmi_drl.selector.tune.candidate import Ask, Chosen, Failed, Measured


@pytest.fixture
def machines(selector_scripts):
    import machines

    return machines


@pytest.fixture
def regret(selector_scripts):
    import regret

    return regret


def every(machine):
    return [one for row in machine.space.rows for one in row]


def test_a_seed_makes_the_same_machine_with_the_same_answers(machines):
    one, two = (machines.generate("noisy", 5) for _ in range(2))
    assert one.space == two.space
    asks = [Ask(candidate, 5.0) for candidate in every(one)]
    assert [one.answer(ask) for ask in asks] == [two.answer(ask) for ask in asks]
    assert machines.generate("noisy", 6).best != one.best


def test_spaces_are_as_large_as_real_ones(machines):
    sizes = {machines.generate("memory", seed).space.size for seed in range(40)}
    assert min(sizes) == 42  # two cores
    assert max(sizes) > 200


@pytest.mark.parametrize("seconds", [5.0, 80.0])
def test_the_error_told_is_the_error_made_and_shrinks_with_time(machines, seconds):
    machine = machines.generate("noisy", 1)
    one = machine.space.rows[0][4]
    answers = [machine.answer(Ask(one, seconds)) for _ in range(400)]
    assert {round(answer.error, 6) for answer in answers} == {round(0.2 * (5 / seconds) ** 0.5, 6)}
    off = [math.log(a.steps_per_s / machine.truth(one)) / a.error for a in answers]
    assert statistics.fmean(off) == pytest.approx(0, abs=0.2)
    assert statistics.stdev(off) == pytest.approx(1, abs=0.15)


def test_a_quiet_machine_needs_no_more_time_than_it_takes(machines):
    machine = machines.generate("saturating", 0)
    answer = machine.answer(Ask(machine.space.rows[0][0], 500.0))
    assert answer.seconds < 50
    assert answer.error == pytest.approx(machines.ENOUGH, rel=0.5)


def test_memory_runs_out_and_the_best_is_before_that(machines):
    for seed in range(10):
        machine = machines.generate("memory", seed)
        failed = [one for one in every(machine) if machine.truth(one) == 0.0]
        assert failed
        answers = [machine.answer(Ask(one, 5.0)) for one in failed]
        assert all(isinstance(it, Failed) and it.reason == "memory" for it in answers)
        assert machine.best > 0


def test_throughput_rises_then_falls_or_drops(machines):
    falls = 0
    for seed in range(20):
        machine = machines.generate("contention", seed)
        values = [machine.truth(one) for one in machine.space.rows[0] if machine.truth(one)]
        peak = values.index(max(values))
        assert peak > 0
        assert values[:peak] == sorted(values[:peak])
        falls += peak < len(values) - 1
    assert falls > 10
    machine = machines.generate("cliff", 0)
    values = [machine.truth(one) for one in machine.space.rows[0]]
    assert any(after < 0.75 * before for before, after in pairwise(values))


def test_a_wave_that_is_not_full_takes_as_long_as_a_full_one(machines):
    machine = machines.generate("staircase", 1)
    for its in machine.space.rows:
        for one, other in pairwise(its):
            loads = [c.num_env * c.row.gmi_per_gpu / machine.wave for c in (one, other)]
            if math.ceil(loads[0]) == math.ceil(loads[1]) and machine.truth(other):
                assert machine.truth(other) > machine.truth(one)


@pytest.mark.parametrize("kind", ["saturating", "contention"])
def test_shares_of_a_device_add_up_to_it(machines, kind):
    rows = {its[0].row for seed in range(20) for its in machines.generate(kind, seed).space.rows}
    assert {sum(row.percents) for row in rows if row.percents} == {100}


def test_an_iteration_that_does_not_fit_is_slow(machines):
    machine = machines.generate("saturating", 0)
    one = machine.space.rows[0][-1]
    answer = machine.answer(Ask(one, one.samples / machine.truth(one) / 2))
    assert isinstance(answer, Failed)
    assert answer.reason == "slow"
    assert isinstance(machine.answer(Ask(one, 1e9)), Measured)


def test_the_papers_space_has_powers_of_two_and_one_way_to_share(regret, machines):
    for seed in range(12):
        rows = regret.space_of_paper(machines.generate("cliff", seed).space).rows
        counts = [its[0].row.gmi_per_gpu for its in rows]
        assert counts in ([1, 2, 4, 8], [1, 2])
        assert {one.num_env.bit_count() for its in rows for one in its} == {1}


@pytest.fixture
def rows(regret, monkeypatch):
    """What regret.py would have written."""
    found = {}

    def emit(bench, name, *, value, unit, peer, ratio, **more):
        found[name] = more | {"value": value, "peer": peer}
        return found[name]

    monkeypatch.setattr(regret, "emit", emit)
    return found


def test_regret_has_a_row_for_each_kind_and_three_players(regret, rows):
    regret.main(["--machines", "2", "--seed", "30100"])
    assert sorted(rows) == [f"synthetic/{kind}" for kind in sorted([*regret.KINDS, "all"])]
    whole = rows["synthetic/all"]
    assert whole["repeats"] == 12
    assert whole["value"] == pytest.approx(1 - whole["regret_mean"])
    assert whole["peer"] == pytest.approx(1 - whole["exhaustive_regret_mean"])
    assert whole["exhaustive_profiles_share"] == 1.0
    assert whole["exhaustive_seconds_share"] > 0.9 * whole["seconds_share"]
    assert whole["paper_regret_own"] < whole["paper_regret_mean"]
    good = {"regret_mean": 0.05, "profiles_max": 0.25, "within": 0.9}
    assert regret.holds(good)
    for worse in ({"regret_mean": 0.051}, {"profiles_max": 0.251}, {"within": 0.89}):
        assert not regret.holds(good | worse)


def test_a_search_that_takes_the_first_it_sees_does_not_hold_the_claim(regret, rows, monkeypatch):
    def hasty(space, seconds):
        def search(measure):
            one = space.rows[0][0]
            measure(Ask(one, seconds))
            return Chosen(one, None, (), complete=True)

        return search

    monkeypatch.setattr(regret, "default", hasty)
    assert regret.main(["--machines", "2", "--seed", "30100"]) == 1


def test_an_exhaustive_search_with_time_enough_finds_the_best(regret, machines):
    machine = machines.generate("staircase", 1)
    found = regret.exhaustive(machine, 1e6)
    assert found.regret < 0.05
    assert found.profiles == 1.0
