"""The list of runs: all of a folder, read again where something has changed."""

import json
import os

import pytest

import pages
from gmi_drl.page import catalog as catalogs
from gmi_drl.page.catalog import Catalog, NoRuns, open_catalog
from gmi_drl.page.safe_files import id_of


def listed(catalog):
    content = catalog.as_json()
    json.dumps(content, allow_nan=False)
    return [run["path"] for run in content["runs"]]


def test_runs_are_listed_the_newest_first(tmp_path):
    for stamp, started in (("b", 3.0), ("a", 1.0), ("c", 2.0)):
        pages.make_run(tmp_path, stamp=stamp, started=started)
    assert listed(Catalog(tmp_path)) == ["ant/b", "ant/c", "ant/a"]


def test_a_folder_may_be_of_all_runs_of_one_name_or_a_run(tmp_path):
    path = pages.make_run(tmp_path / "runs")
    for folder, shown in (
        (tmp_path, "runs/ant/t0"), (tmp_path / "runs", "ant/t0"), (path.parent, "t0"), (path, "."),
    ):  # fmt: skip
        assert listed(open_catalog(folder)) == [shown]


def test_without_a_folder_runs_and_searches_here_are_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.make_run(tmp_path / "other")
    catalog = open_catalog(None)
    assert catalog.roots() == []
    assert listed(catalog) == []
    pages.make_run(tmp_path / "runs")  # the first one is made later
    assert listed(catalog) == ["runs/ant/t0"]


def test_a_run_is_found_by_its_id_and_by_nothing_else(tmp_path):
    path = pages.make_run(tmp_path)
    catalog = Catalog(tmp_path)
    catalog.scan()
    assert catalog.find(id_of(path)) == path
    for id in ("", ".", "ant/t0", str(path), id_of(tmp_path), id_of(path)[:-1], id_of(path) + "0"):
        assert catalog.find(id) is None


def test_folders_that_are_links_to_elsewhere_are_not_listed(tmp_path):
    outside = pages.make_run(tmp_path / "outside")
    pages.make_run(tmp_path / "runs")
    os.symlink(outside, tmp_path / "runs" / "ant" / "link")
    os.symlink(outside.parent, tmp_path / "runs" / "names")
    catalog = Catalog(tmp_path / "runs")
    assert listed(catalog) == ["ant/t0"]
    assert catalog.as_json()["outside"] == 2
    assert catalog.find(id_of(outside)) is None


def test_a_run_json_that_is_a_link_to_elsewhere_is_not_read(tmp_path):
    path = pages.make_run(tmp_path, iterations=0)
    (path / "run.json").unlink()
    (tmp_path / "secret").write_text('{"env": "secret", "state": "finished"}')
    os.symlink(tmp_path / "secret", path / "run.json")
    content = Catalog(tmp_path).as_json()
    assert content["runs"][0]["state"] == "damaged"
    assert content["runs"][0]["env"] is None


def test_of_a_hundred_runs_the_ends_are_read_and_then_what_changed(tmp_path, monkeypatch):
    """So a folder of a hundred opens at once, however long its runs are."""
    for number in range(100):
        pages.make_run(tmp_path, stamp=f"t{number:03d}", iterations=1000 if number < 2 else 3)
    read = []
    whole, opened = catalogs.read_inside, catalogs.open_inside

    def counted(read_or_open, path, name):
        read.append((path.name, name))
        return read_or_open(path, name)

    monkeypatch.setattr(catalogs, "read_inside", lambda path, name: counted(whole, path, name))
    monkeypatch.setattr(catalogs, "open_inside", lambda path, name: counted(opened, path, name))
    catalog = Catalog(tmp_path)
    assert len(listed(catalog)) == 100
    assert len(read) == 200  # run.json and the end of metrics.jsonl, of each
    read.clear()
    assert len(listed(catalog)) == 100
    assert read == []
    with open(tmp_path / "ant" / "t007" / "metrics.jsonl", "a") as file:
        file.write(pages.line(4))
    listed(catalog)
    assert read == [("t007", "run.json"), ("t007", "metrics.jsonl")]


def test_so_many_runs_that_no_browser_shows_them_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogs, "_MOST_RUNS", 2)
    for number in range(5):
        pages.make_run(tmp_path, stamp=f"t{number}", started=float(number))
    catalog = Catalog(tmp_path)
    assert listed(catalog) == ["ant/t4", "ant/t3"]
    assert catalog.as_json()["more"] == 3


@pytest.mark.parametrize("what", ["missing", "empty", "strangers", "file"])
def test_a_folder_that_is_not_ours_is_refused(tmp_path, what):
    folder = tmp_path / "folder"
    if what == "file":
        folder.write_text("")
    elif what != "missing":
        folder.mkdir()
    if what == "strangers":
        (folder / "notes.txt").write_text("")
    with pytest.raises(NoRuns, match="Give t"):
        open_catalog(folder)
