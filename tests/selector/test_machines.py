"""Machines that are made up are what they say: reproducible, honest about their noise, varied."""

import math
import statistics
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from gmi_drl.selector.candidate import Ask, Failed, Measured

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def machines(monkeypatch):
    """The benchmarks are scripts: they find each other in their own folder."""
    monkeypatch.syspath_prepend(str(BENCH / "selector"))
    import machines

    yield machines
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(BENCH)):
            del sys.modules[name]


@pytest.fixture
def regret(machines):
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


def test_regret_is_reported_for_both_searches(regret, monkeypatch):
    rows = {}
    monkeypatch.setattr(regret, "emit", lambda bench, name, *at, **more: rows.update({name: more}))
    regret.main(["--machines", "3", "--seed", "0"])
    assert sorted(rows) == [f"synthetic/{k}" for k in sorted([*regret.KINDS, "all"])]
    assert rows["synthetic/all"]["repeats"] == 15
    assert rows["synthetic/all"]["within"] == 1.0
    assert rows["synthetic/all"]["paper_regret_max"] >= rows["synthetic/all"]["paper_regret_mean"]
