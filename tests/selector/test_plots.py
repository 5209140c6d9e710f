"""The picture of a tune: drawn for whatever is on record, and the same for the same record."""

from dataclasses import replace

import pytest
from matplotlib.axes import Axes

from gmi_drl.placement import load_config
from gmi_drl.selector.plots.search_picture import draw_search
from gmi_drl.selector.plots.tune_picture import draw, pens_of
from gmi_drl.selector.record.results import results_of
from gmi_drl.selector.tune.candidate import DeviceSplit, Failed
from recorded import candidate, measured, on_cores, on_gpus, recorded

RACES = tuple(
    {"candidate": candidate(2, n), "round": r, "points": [[1.0, n], [2.0, 2 * n]]}
    for n in (32, 64)
    for r in (1, 2)
)
ONE = candidate(1, 64)


@pytest.mark.parametrize(
    "record",
    [
        on_cores(races=RACES),
        on_gpus(),
        recorded([(ONE, measured(100.0))], ONE),
        replace(on_cores(), chosen=None),
        recorded([(ONE, measured(1e6, limit=1.1)), (candidate(2, 8), Failed("slow", "it was"))]),
    ],
    ids=["race", "gpus", "one point", "interrupted", "a row that failed"],
)
def test_a_picture_is_drawn_of_any_record(record, tmp_path):
    png, svg = draw(record, tmp_path / "report")
    assert png.stat().st_size > 20_000
    text = svg.read_text()
    for piece in ("Throughput", "What was tried", "Memory", "Where the time goes", "num_env"):
        assert piece in text
    assert ("Return at equal time" in text) == bool(record.races)
    told = (">memory<", ">hang<", ">winner<", ">runner-up<", "limit 130.0 GiB")
    assert record != on_gpus() or all(piece in text for piece in told)


def test_the_same_record_gives_the_same_svg(tmp_path):
    first, second = (draw(on_cores(), tmp_path / name)[1] for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_choices_that_look_alike_have_places_of_their_own(tmp_path, monkeypatch):
    gammas, places = [0.99, 0.99991, 0.99992], []
    monkeypatch.setattr(Axes, "scatter", lambda self, x, y, **_: places.append(x[0]))
    ranges = {"algorithm.gamma": {"choice": gammas}}
    data = {"version": 1, "env": {"id": "CartPole-v1"}, "search": {"ranges": ranges}}
    lines = [
        {
            "kind": "ended", "trial": trial, "number": 0, "bracket": 0, "start": None, "steps": 9,
            "reached": 9, "points": [[9, 1.0]], "return_mean": 1.0,
            "values": {"algorithm.gamma": gamma},
        }
        for trial, gamma in enumerate(gammas)
    ]  # fmt: skip
    draw_search(tmp_path / "search.png", load_config(data), lines, (0, 0))
    assert places == [0, 1, 2]


def test_nothing_is_drawn_where_nothing_ran(tmp_path):
    assert draw(recorded([(ONE, Failed("crash", "it died"))]), tmp_path / "report") == []
    assert not (tmp_path / "report").exists()


def test_rows_of_as_many_gmis_share_a_colour_and_no_two_look_alike():
    pens = pens_of(results_of(on_gpus().profiles))
    even, over = pens[DeviceSplit(4, "mps")], pens[DeviceSplit(4, "mps", 2.0)]
    assert even.colour == over.colour
    assert len({(pen.colour, pen.line) for pen in pens.values()}) == len(pens)
