"""Algorithm 2 as printed, and where it had to be mended."""

import math

import pytest

from gmi_drl.selector.tune.algorithms.observations import (
    Point,
    project_memory,
    sat,
    throughput_bound,
)
from gmi_drl.selector.tune.algorithms.paper import paper
from gmi_drl.selector.tune.candidate import Candidate, DeviceSplit, Failed, Measured, Space


def row(gmis, counts=(128, 256, 512, 1024)):
    return tuple(Candidate(DeviceSplit(gmis, "mps"), n, 16, n * gmis * 16) for n in counts)


def measured(steps_per_s, mem_bytes):
    return Measured(steps_per_s, 0.01, 3, 5.0, {}, 1 << 30, mem_bytes, 0.1, 1.0)


def play(search, answers):
    """What was asked, as (GMIs, num_env), and what was chosen; `answers` is by the same."""
    asked = []

    def measure(ask):
        asked.append((ask.candidate.row.gmi_per_gpu, ask.candidate.num_env))
        return answers[asked[-1]]

    return asked, search(measure)


def test_a_row_ends_where_sat_falls_below_alpha_and_the_saturated_point_does_not_count():
    answers = {
        (1, 128): measured(100, 100), (1, 256): measured(180, 150),
        (1, 512): measured(182, 300), (2, 128): measured(170, 100),
        (2, 256): measured(174, 110), (2, 512): measured(175, 300),
    }  # fmt: skip
    asked, chosen = play(paper(Space((row(1), row(2))), 5.0), answers)
    assert asked == list(answers)
    # 182 is more, but line 20 leaves the row before line 23.
    assert (chosen.winner.row.gmi_per_gpu, chosen.winner.num_env) == (1, 256)
    whys = {
        (one.candidate.row.gmi_per_gpu, one.candidate.num_env): one.why for one in chosen.skipped
    }
    assert sorted(whys) == [(1, 1024), (2, 1024)]
    assert "saturated at 512" in whys[1, 1024]
    assert chosen.complete


def test_the_runner_up_is_the_best_of_the_others():
    answers = {(1, 128): measured(10, 1), (1, 256): measured(50, 2), (1, 512): measured(100, 3),
               (2, 128): measured(99, 1)}  # fmt: skip
    space = Space((row(1, (128, 256, 512)), row(2, (128,))))
    chosen = play(paper(space, 5.0), answers)[1]
    assert (chosen.winner.num_env, chosen.runner_up) == (512, space.rows[1][0])
    spent = play(paper(space, 5.0), answers | {(2, 128): None})[1]
    assert spent.runner_up == space.rows[0][1]


def test_throughput_is_that_of_all_gmis_together_and_not_multiplied():
    answers = {(1, 128): measured(100, 100), (2, 128): measured(90, 100)}
    space = Space((row(1, (128,)), row(2, (128,))))
    assert play(paper(space, 5.0), answers)[1].winner.row.gmi_per_gpu == 1


def test_memory_that_does_not_grow_is_no_division_by_zero():
    answers = {(1, 128): measured(100, 7), (1, 256): measured(101, 7), (1, 512): measured(90, 7)}
    asked, chosen = play(paper(Space((row(1),)), 5.0), answers)
    assert asked == list(answers)
    assert chosen.winner.num_env == 256


@pytest.mark.parametrize("reason", ["memory", "crash", "hang", "slow"])
def test_a_failure_ends_its_row(reason):
    answers = {(1, 128): measured(100, 100), (1, 256): Failed(reason, "it"),
               (2, 128): Failed(reason, "it")}  # fmt: skip
    asked, chosen = play(paper(Space((row(1), row(2))), 5.0), answers)
    assert asked == list(answers)
    assert chosen.winner.num_env == 128
    assert len(chosen.skipped) == 5


def test_a_refused_candidate_says_nothing_of_the_next():
    answers = {(1, 128): measured(100, 100), (1, 256): Failed("refused", "odd"),
               (1, 512): measured(300, 300), (1, 1024): measured(500, 500)}  # fmt: skip
    assert play(paper(Space((row(1),)), 5.0), answers)[1].winner.num_env == 1024


def test_a_spent_budget_returns_what_is_known():
    answers = {(1, 128): measured(100, 100), (1, 256): None}
    _, chosen = play(paper(Space((row(1), row(2))), 5.0), answers)
    assert chosen.winner.num_env == 128
    assert not chosen.complete
    assert len(chosen.skipped) == 7


def test_nothing_that_runs_is_no_winner():
    answers = {(1, 128): Failed("crash", "it")}
    chosen = play(paper(Space((row(1),)), 5.0), answers)[1]
    assert chosen.winner is chosen.runner_up is None


def test_sat_is_gain_over_growth():
    """Twice the throughput for half as much memory again: 1 / 0.5."""
    assert sat(measured(100, 100), measured(200, 150)) == pytest.approx(2.0)
    assert sat(measured(100, 100), measured(90, 90)) == pytest.approx(-0.1)
    assert sat(measured(0, 100), measured(100, 150)) == math.inf
    assert sat(measured(0, 100), measured(0, 150)) == 0.0


def test_memory_is_projected_by_the_line_through_the_two_nearest():
    points = [Point(128, 1.0, 0.1), Point(256, 1.0, 0.2), Point(512, 1.0, 0.3)]
    assert project_memory(points, 1024) == pytest.approx(0.5)
    assert project_memory(points, 384) == pytest.approx(0.25)
    assert project_memory(points, 64) == pytest.approx(0.05)
    assert project_memory(points[:1], 1024) is None


def test_a_fixed_time_and_one_for_each_environment_is_found_again():
    """n / (0.1 + 0.001 n), and no more than that is reached anywhere."""
    points = [Point(n, n / (0.1 + 0.001 * n)) for n in (64, 256, 1024)]
    for n in (128, 512, 4096):
        assert throughput_bound(points, n) == pytest.approx(n / (0.1 + 0.001 * n))


def test_before_a_cliff_the_bound_is_what_it_would_be_if_there_were_none():
    def steps_per_s(n):
        return n / (0.1 + 0.001 * n) * (0.4 if n > 500 else 1.0)

    points = [Point(n, steps_per_s(n)) for n in (64, 256, 1024, 4096)]
    assert throughput_bound(points, 384) == pytest.approx(steps_per_s(384))
