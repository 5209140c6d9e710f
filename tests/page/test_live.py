"""What a viewer is told: what is new, and nothing twice."""

import json
import time

import pytest

import pages
from gmi_drl.page import live as lives
from gmi_drl.page.live import Viewer, number_in_query
from gmi_drl.page.safe_files import id_of


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(lives, "_FRESH_S", 0.0)
    monkeypatch.setitem(lives._LISTS, "runs", 0.0)


def names(events):
    return [name for name, _ in events]


def test_a_viewer_is_told_all_once_and_then_what_is_new(tmp_path):
    path = pages.make_run(tmp_path)
    live, viewer = pages.live_of(tmp_path), Viewer(id_of(path), 0)
    assert names(live.changes(viewer)) == ["runs", "trials", "layout", "run", "curves", "log"]
    assert live.changes(viewer) == []
    with open(path / "metrics.jsonl", "a") as file:
        file.write(pages.line(4))
    events = dict(live.changes(viewer))
    assert set(events) == {"run", "curves"} or set(events) == {"runs", "run", "curves"}
    curves = json.loads(events["curves"])
    assert curves["columns"]["iteration"] == [4]
    with open(path / "logs" / "gmi0.log", "a") as file:
        file.write("more\n")
    assert json.loads(dict(live.changes(viewer))["log"])["text"] == "this is GMI 0\nmore\n"


def test_another_viewer_is_told_all(tmp_path):
    path = pages.make_run(tmp_path, iterations=50)
    live = pages.live_of(tmp_path)
    first, second = Viewer(id_of(path), None), Viewer(id_of(path), None)
    live.changes(first)
    events = dict(live.changes(second))
    assert len(json.loads(events["curves"])["columns"]["iteration"]) == 50


def test_viewers_share_what_is_read(tmp_path):
    path = pages.make_run(tmp_path, iterations=1000)
    live = pages.live_of(tmp_path)
    for _ in range(20):
        live.changes(Viewer(id_of(path), 0))
    reader, _ = live._readers[id_of(path)]
    assert reader.metrics.bytes_read == (path / "metrics.jsonl").stat().st_size


def test_viewers_share_a_look_at_all_runs(tmp_path, monkeypatch):
    path = pages.make_run(tmp_path)
    live, viewers = pages.live_of(tmp_path), [Viewer(None, None) for _ in range(20)]
    looks, look = [], live.catalog.as_json
    monkeypatch.setattr(live.catalog, "as_json", lambda: looks.append(None) or look())
    monkeypatch.setitem(lives._LISTS, "runs", 1e9)
    for viewer in viewers:
        assert names(live.changes(viewer))[:2] == ["runs", "trials"]
    assert len(looks) == 1
    live._due_s["runs"] = 0.0  # as when the time has passed
    pages.make_run(tmp_path, stamp="t1", started=2e9)
    for viewer in viewers:
        told = dict(live.changes(viewer))
        assert len(json.loads(told["runs"])["runs"]) == 2
        assert viewer.run == id_of(path.with_name("t1"))
    assert len(looks) == 2


def test_a_run_that_was_deleted_is_told(tmp_path):
    path = pages.make_run(tmp_path)
    live, viewer = pages.live_of(tmp_path), Viewer(id_of(path), None)
    live.changes(viewer)
    path.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "run.json").unlink()
    assert "runs" in names(live.changes(viewer))


def test_who_asks_for_no_run_is_given_the_newest_and_then_the_next(tmp_path):
    live, viewer = pages.live_of(tmp_path), Viewer(None, 0)
    assert names(live.changes(viewer)) == ["runs", "trials"]
    for number in (1, 2):
        path = pages.make_run(tmp_path, stamp=f"t{number}", started=float(number))
        events = live.changes(viewer)
        assert names(events) == ["runs", "layout", "run", "curves", "log"]
        assert json.loads(dict(events)["run"])["head"]["folder"] == str(path)
        assert json.loads(dict(events)["curves"])["columns"]["iteration"] == [1, 2, 3]
    viewer = Viewer(None, 1)
    assert json.loads(dict(live.changes(viewer))["log"])["text"] == "this is GMI 1\n"
    pages.make_run(tmp_path, stamp="t3", started=3.0, gmis=1)
    assert json.loads(dict(live.changes(viewer))["log"])["text"] == "this is GMI 0\n"
    chosen = Viewer(id_of(path.with_name("t1")), 0)
    assert json.loads(dict(live.changes(chosen))["run"])["head"]["folder"].endswith("t1")


def test_few_runs_are_kept_in_memory(tmp_path):
    paths = [pages.make_run(tmp_path, stamp=f"t{number}") for number in range(20)]
    live = pages.live_of(tmp_path)
    for path in paths:
        live.changes(Viewer(id_of(path), None))
    assert len(live._readers) == 8


def test_numbers_that_browsers_cannot_read_are_not_sent(tmp_path):
    path = pages.make_run(tmp_path, return_mean=float("inf"), eval_return=float("nan"),
                          steps_per_s=float("inf"), mem_peak_bytes=[float("nan")] * 2)  # fmt: skip
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"iteration": NaN, "steps": Infinity, "gmi_seconds": [{"train": NaN}]}\n')
    for _, text in pages.live_of(tmp_path).changes(Viewer(id_of(path), 0)):
        json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("17", 17), ("", None), ("-1", None), ("../1", None), ("1/..", None), ("1e3", None),
     ("0x10", None), ("٣", None), ("1" * 7, None), (" 1", None), ("1\n", None)],
)  # fmt: skip
def test_a_gmi_is_a_small_number(text, number):
    assert number_in_query(text) == number


def test_a_look_at_a_run_of_a_thousand_iterations_is_short(tmp_path):
    """Not a promise of time, which bench/page.py measures, but no more than a generous bound."""
    path = pages.make_run(tmp_path, iterations=1000)
    live = pages.live_of(tmp_path)
    began_s = time.process_time()
    live.changes(Viewer(id_of(path), 0))
    assert time.process_time() - began_s < 5
