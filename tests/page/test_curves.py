"""`MetricsReader`: all of a file, once, in bounded memory."""

import json
import os

import pytest

import pages
from gmi_drl.page import curves
from gmi_drl.page.curves import MOST_POINTS, Cursor, MetricsReader
from gmi_drl.page.safe_files import OutsideFolder


def write(folder, *numbers, mode="a", **more):
    with open(folder / "metrics.jsonl", mode) as file:
        file.writelines(pages.line(number, **more) for number in numbers)


def read_all(reader):
    reader.poll()
    while reader.unread_bytes:
        reader.poll()
    return reader


def column(reader, key):
    change, _ = reader.since(Cursor())
    return change["columns"].get(key)


class Viewer:
    """Puts changes together as curves.js does."""

    def __init__(self):
        self.cursor, self.columns, self.generation, self.recent = Cursor(), {}, None, []

    def look(self, reader):
        change, self.cursor = reader.since(self.cursor)
        json.dumps(change, allow_nan=False)
        if change["generation"] != self.generation:
            self.columns, self.recent = {}, []
        self.generation = change["generation"]
        for key, values in change["columns"].items():
            column = self.columns.setdefault(key, [])
            del column[change["from"] :]
            column += [None] * (change["from"] - len(column))
            column += values
        self.recent = [*self.recent, *change["recent"]][-curves.RECENT :]
        return change


def test_what_has_been_read_is_not_read_again(tmp_path):
    write(tmp_path, *range(1, 1001))
    size = (tmp_path / "metrics.jsonl").stat().st_size
    reader = read_all(MetricsReader(tmp_path))
    assert reader.bytes_read == size
    assert column(reader, "iteration") == list(range(1, 1001))
    write(tmp_path, 1001)
    assert reader.poll()
    assert not reader.poll()
    assert reader.bytes_read == (tmp_path / "metrics.jsonl").stat().st_size
    assert reader.last["iteration"] == 1001


def test_a_viewer_is_sent_what_is_new_and_no_more(tmp_path):
    reader, viewer = MetricsReader(tmp_path), Viewer()
    write(tmp_path, *range(1, 501))
    read_all(reader)
    first = viewer.look(reader)
    assert len(first["columns"]["steps"]) == 500
    assert len(first["recent"]) == curves.RECENT
    write(tmp_path, 501, 502, extra=7)
    reader.poll()
    second = viewer.look(reader)
    assert second["from"] == 500
    assert second["columns"]["steps"] == [50100, 50200]
    assert [row["iteration"] for row in second["recent"]] == [501, 502]
    assert viewer.columns["extra"] == [None] * 500 + [7, 7]
    assert viewer.look(reader)["columns"]["steps"] == []


@pytest.mark.parametrize("many", [1999, 2000, 2001, 3999, 4001, 9000])
def test_a_curve_has_two_thousand_points_at_most(tmp_path, many):
    reader, viewer = MetricsReader(tmp_path), Viewer()
    for start in range(0, many, 700):  # as it grows
        write(tmp_path, *range(start + 1, min(start + 700, many) + 1))
        read_all(reader)
        viewer.look(reader)
    assert reader.points <= MOST_POINTS
    assert reader.points * reader.stride >= many
    whole = Viewer()
    whole.look(reader)
    assert viewer.columns == whole.columns, "changes make what is sent at once"
    assert viewer.columns["iteration"][-1] == many
    assert viewer.columns["iteration"] == sorted(set(viewer.columns["iteration"]))
    # Each point is the mean of its lines: `return_mean` is the number of the iteration.
    ends = viewer.columns["iteration"]
    begins = [0, *ends[:-1]]
    means = [(begin + 1 + end) / 2 for begin, end in zip(begins, ends, strict=True)]
    assert viewer.columns["return_mean"] == pytest.approx(means, rel=1e-5)


def test_memory_is_bounded_whatever_a_line_has(tmp_path):
    with open(tmp_path / "metrics.jsonl", "w") as file:
        for number in range(5000):
            file.write(json.dumps({"iteration": number, f"key{number}": 1.0, "k" * 99: 1}) + "\n")
        file.write(json.dumps({"gmi_seconds": [{f"p{i}": 1.0 for i in range(99)}] * 500}) + "\n")
    reader = read_all(MetricsReader(tmp_path))
    change, _ = reader.since(Cursor())
    assert len(change["columns"]) <= 64
    assert all(len(values) <= MOST_POINTS for values in change["columns"].values())
    assert len(change["recent"][-1]["gmis"]) == 256
    assert len(change["recent"][-1]["gmis"][0]) == 12


def test_a_line_without_end_costs_no_memory(tmp_path):
    write(tmp_path, 1)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"x": "' + "y" * 3_000_000)
    reader = read_all(MetricsReader(tmp_path))
    assert len(reader._torn) < 2**20
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('"}\n')
    write(tmp_path, 2)
    read_all(reader)
    assert column(reader, "iteration") == [1, 2]
    assert reader.damaged == 1


def test_a_torn_line_is_taken_when_its_end_has_come(tmp_path):
    text = pages.line(2)
    write(tmp_path, 1)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(text[:40])
    reader = read_all(MetricsReader(tmp_path))
    assert column(reader, "iteration") == [1]
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(text[40:])
    reader.poll()
    assert column(reader, "iteration") == [1, 2]
    assert reader.damaged == 0


def test_lines_that_are_no_metrics_are_left_out_and_counted(tmp_path):
    odd = [b"\xff\xfe", b"[1]", b"[" * 60_000, b'{"a": }', b"null", b"", b'"x"']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*odd, b""]))
    write(tmp_path, 1)
    reader = read_all(MetricsReader(tmp_path))
    assert column(reader, "iteration") == [1]
    assert reader.damaged == 6


def test_numbers_that_no_browser_reads_are_gaps(tmp_path):
    text = (
        '{"iteration": %d, "a": NaN, "b": -Infinity, "c": 1e999, "d": true, "e": 1%s, "f": 1.5}\n'
    )
    (tmp_path / "metrics.jsonl").write_text(text % (1, "0" * 400) + text % (2, ""))
    change, _ = read_all(MetricsReader(tmp_path)).since(Cursor())
    json.dumps(change, allow_nan=False)
    assert change["columns"] == {"iteration": [1, 2], "f": [1.5, 1.5], "e": [None, 1]}


def test_a_resume_that_writes_the_file_anew_begins_the_curve_anew(tmp_path):
    reader, viewer = MetricsReader(tmp_path), Viewer()
    write(tmp_path, *range(1, 31))
    read_all(reader)
    viewer.look(reader)
    write(tmp_path / ".", *range(1, 11))
    (tmp_path / "new").mkdir()
    write(tmp_path / "new", *range(1, 11))
    os.replace(tmp_path / "new" / "metrics.jsonl", tmp_path / "metrics.jsonl")
    assert reader.poll()
    viewer.look(reader)
    assert viewer.columns["iteration"] == list(range(1, 11))
    assert [row["iteration"] for row in viewer.recent] == list(range(1, 11))


def test_a_file_that_became_shorter_begins_anew(tmp_path):
    write(tmp_path, *range(1, 31))
    reader = read_all(MetricsReader(tmp_path))
    write(tmp_path, 1, 2, mode="w")
    reader.poll()
    assert column(reader, "iteration") == [1, 2]


def test_a_long_file_is_shown_while_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "_SLICE_BYTES", 4096)
    monkeypatch.setattr(curves, "_CHUNK", 1024)
    write(tmp_path, *range(1, 101))
    reader = MetricsReader(tmp_path)
    reader.poll()
    seen = column(reader, "iteration")
    assert 0 < len(seen) < 100
    assert reader.unread_bytes > 0
    assert column(read_all(reader), "iteration") == list(range(1, 101))


def test_speed_is_that_of_the_last_iterations(tmp_path):
    reader = MetricsReader(tmp_path)
    assert reader.steps_per_s is None
    write(tmp_path, *range(1, 101))
    read_all(reader)
    assert reader.steps_per_s == pytest.approx(1000.0)
    assert reader.seconds_per_iteration == pytest.approx(0.1)


def test_metrics_that_are_a_link_to_elsewhere_are_not_read(tmp_path):
    (tmp_path / "run").mkdir()
    write(tmp_path, 1)
    os.symlink(tmp_path / "metrics.jsonl", tmp_path / "run" / "metrics.jsonl")
    reader = MetricsReader(tmp_path / "run")
    with pytest.raises(OutsideFolder, match="a link that leads out"):
        reader.poll()
    assert reader.last == {}
