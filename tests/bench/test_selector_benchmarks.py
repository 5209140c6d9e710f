"""The selector's benchmarks: their arithmetic and bookkeeping; nothing is launched or timed."""

import pytest

from gmi_drl.selector.tune.candidate import Failed, Space
from recorded import candidate, measured

SPACE = Space(tuple(tuple(candidate(g, n) for n in (32, 48, 64)) for g in (1, 2)))
SLOW, BEST, OTHER = SPACE.rows[0][2], SPACE.rows[1][2], SPACE.rows[1][1]


pytestmark = pytest.mark.usefixtures("selector_scripts")


class Stage:
    """Answers in the order given, then has no time."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, ask):
        self.asked.append(ask.candidate)
        return self.answers.pop(0) if self.answers else None

    def text(self, one):
        return f"{one.row.gmi_per_gpu}x{one.num_env}"


def test_the_grid_is_every_candidate_or_what_there_was_time_for():
    from grid import whole

    every = whole(SPACE, 1.0, Stage(*[measured(1.0)] * 9))
    assert list(every) == [c for pair in zip(*SPACE.rows, strict=True) for c in pair]
    stage = Stage(measured(1.0), Failed("memory", "oom"))
    assert list(whole(SPACE, 1.0, stage)) == stage.asked[:2]


def test_a_round_counts_when_all_ended_it():
    from grid import confirm

    stage = Stage(*map(measured, (1, 2, 3)), Failed("crash", "it died"), *map(measured, (5, 6)))
    assert confirm([SLOW, BEST], 1.0, 3, stage) == {SLOW: [1, 5], BEST: [2, 6]}


def test_the_choice_is_held_against_the_best_and_the_plain_start_in_the_same_round():
    from grid import Played, plain_of, told

    rates = {OTHER: [90.0, 50.0, 95.0], BEST: [100.0, 50.0, 100.0], SLOW: [50.0, 25.0, 50.0]}
    assert plain_of(SPACE) == SLOW
    row = told(Played(OTHER, True, 3, 12.0, []), rates, BEST, SLOW, Stage())
    assert row["ratio"] == 0.95
    assert row["ratio_spread"] == [0.9, 1.0]
    assert row["regret"] == 0.05
    assert row["gain_over_default"] == 1.9
    assert row["chosen"] == "2x48"


def test_figure_10_reads_and_draws_what_the_grid_wrote(tmp_path):
    from figure10 import draw, findings, row_of, stop
    from grid import point

    rates = {32: 1000, 48: 1500, 64: 1600, 128: 1610}
    points = [point(candidate(1, n), measured(r, gib=0.1 * n)) for n, r in rates.items()]
    points.append(point(candidate(2, 32), Failed("memory", "oom")))
    found = findings(points)
    (line, _) = found.rows.values()
    assert stop(line).candidate.num_env == 128
    row = row_of("ant", found, points)
    assert (row["value"], row["first"]) == (1600.0, 1000.0)
    assert row["algorithm2_stops_at"] == {1: 128}
    draw({"ant": found}, tmp_path, "two cores")
    for kind in ("png", "svg"):
        assert (tmp_path / f"figure10.{kind}").stat().st_size > 5_000
