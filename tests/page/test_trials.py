"""Tunes and searches on the page: what was tried, what came of it, and why."""

import fcntl
import json
import os

import pytest

import pages
from gmi_drl.page.trials import TrialsReader, find_records
from gmi_drl.selector.record import record as records
from gmi_drl.selector.record.search_folder import RECORD

HEADER = {
    "kind": "header", "format": 1,
    "config": {"env": {"id": "CartPole-v1"}, "search": {
        "algorithm": "hyperband", "ranges": {"algorithm.learning_rate": {}, "algorithm.epochs": {}},
    }},
}  # fmt: skip


def asked(trial, number=0, steps=100, start=None, bracket=0):
    values = {"algorithm.learning_rate": 0.001 * (trial + 1), "algorithm.epochs": 4}
    return {"kind": "asked", "trial": trial, "number": number, "values": values, "steps": steps,
            "start": start, "bracket": bracket}  # fmt: skip


def ended(trial, mean, **more):
    line = asked(trial, **more) | {"kind": "ended", "return_mean": mean, "total_s": 5.0}
    steps = line["steps"]
    return line | {"reached": steps + 20, "points": [[steps // 2, 1.0], [steps + 20, mean or 0.0]]}


def failed(trial, text, **more):
    return asked(trial, **more) | {"kind": "failed", "text": text, "total_s": 6.0}


def write_search(folder, *lines, header=HEADER):
    path = folder / "cartpole" / "t0"
    path.mkdir(parents=True, exist_ok=True)
    (path / RECORD).write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    return path


def shown(folder, with_tunes=False):
    content = TrialsReader(with_tunes).as_json([folder])
    json.dumps(content, allow_nan=False)
    return content


def test_a_search_tells_each_trial_with_its_reason(tmp_path):
    path = write_search(
        tmp_path,
        ended(0, 10.0), ended(1, 30.0), failed(2, "it diverged"), ended(3, None),
        asked(1, number=1, steps=300, start=[1, 0]),
    )  # fmt: skip
    (path / "trials" / "001" / "1").mkdir(parents=True)
    (path / "trials" / "001" / "1" / "metrics.jsonl").write_text(pages.line(2))
    (search,) = shown(tmp_path)
    (table,) = search["tables"]
    assert table["columns"] == ["trial", "steps", "return", "learning_rate", "epochs", "why"]
    rows = {row[0]: row for row in table["rows"]}
    assert rows["0"] == [
        "0",
        "120",
        "10.0",
        "0.001",
        "4",
        "number 2 of 3 at 100 steps in bracket 1",
    ]
    assert rows["2"][-1] == "failed: it diverged"
    assert rows["3"][2] == "-"
    assert rows["1"][1:3] == ["200", "2.0"], "as it goes: by its metrics"
    assert search["texts"] == ["3 runs ended, 1 failed in 0:06; best so far: trial 1."]
    assert [each["name"] for each in search["series"]] == ["trial 1", "trial 0", "trial 3"]
    assert search["series"][0]["points"] == [[50, 1.0], [120, 30.0]]


def test_a_trial_that_diverged_leaves_the_others_on_the_page(tmp_path):
    write_search(tmp_path, ended(0, float("-inf")), ended(1, 3.0))
    (search,) = shown(tmp_path)
    points = {each["name"]: each["points"] for each in search["series"]}
    assert points == {"trial 0": [[50, 1.0]], "trial 1": [[50, 1.0], [120, 3.0]]}


def test_a_search_at_work_holds_its_lock(tmp_path):
    path = write_search(tmp_path, asked(0))
    (path / "lock").write_text("process 1")
    assert shown(tmp_path)[0]["state"] == "ended before its end"
    with open(path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (search,) = shown(tmp_path)
    assert search["state"] == "at work"
    assert search["tables"][0]["rows"][0][-1] == "trains up to 100 steps"
    write_search(tmp_path, asked(0), ended(0, 1.0), {"kind": "finished", "total_s": 7.0})
    assert shown(tmp_path)[0]["state"] == "done"


def test_a_trial_says_from_whom_it_took_over(tmp_path):
    path = write_search(tmp_path, ended(0, 9.0), asked(1, number=1, steps=200, start=[0, 0]))
    with open(path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (search,) = shown(tmp_path)
    rows = {row[0]: row[-1] for row in search["tables"][0]["rows"]}
    assert rows["1"] == "trains up to 200 steps; took over from trial 0"


def test_a_record_is_read_again_when_it_has_grown(tmp_path, monkeypatch):
    path = write_search(tmp_path, ended(0, 10.0))
    reader = TrialsReader(False)
    first = reader.as_json([tmp_path])
    monkeypatch.setattr("gmi_drl.page.trials.parse_journal", None)
    assert reader.as_json([tmp_path]) == first
    monkeypatch.undo()
    with open(path / RECORD, "a") as file:
        file.write(json.dumps(ended(1, 20.0)) + "\n")
    assert "best so far: trial 1" in reader.as_json([tmp_path])[0]["texts"][0]


def test_a_tune_is_told_as_by_the_command(tmp_path, monkeypatch):
    """Of a record as the tuner writes it, in the folder where tuners of this user keep them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = records.record_path("k" * 32)
    path.parent.mkdir(parents=True)
    row = {"gmi_per_gpu": 1, "backend": "cpu"}
    tried = {"row": row, "num_env": 16, "horizon": 64, "samples": 1024, "changes": []}
    answer = {"steps_per_s": 5000.0, "error": 0.01, "iterations": 5, "seconds": 2.0,
              "phases": {"train": 1.0}, "host_bytes": 2**30, "device_bytes": None, "memory": 0.1,
              "cores": 1.0, "sm_activity": None}  # fmt: skip
    journal, _ = records.TuneJournal.open(
        path, {"key": "k", "env": "Ant-v5", "mode": "sync"}, anew=True
    )
    lines = [
        {"kind": "profile", "ask": {"candidate": tried, "seconds": 2.0}, "answer": answer,
         "cost_s": 3.0, "waits_s": 60.0},
        {"kind": "profile", "ask": {"candidate": tried | {"num_env": 32}, "seconds": 2.0},
         "answer": {"reason": "memory", "text": "the host ran out"}, "cost_s": 3.0,
         "waits_s": 60.0},
    ]  # fmt: skip
    path.write_text("".join([journal.text, *(json.dumps(line) + "\n" for line in lines)]))
    assert shown(tmp_path / "none") == []
    (tune,) = shown(tmp_path / "none", with_tunes=True)
    assert (tune["kind"], tune["state"]) == ("tune", "at work, or ended before its end")
    assert tune["title"] == "Ant-v5: 1 GMI, num_env 16, 5,000 steps/s ± 1.0 % so far"
    rows = tune["tables"][0]["rows"]
    assert rows[0][:4] == ["1 GMI, num_env 16", "5,000", "± 1.0 %", "1.00 GiB"]
    assert rows[1][-1] == "failed: memory: the host ran out"
    assert any("nothing is chosen yet" in text for text in tune["texts"])


def test_a_report_and_its_record_are_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = records.record_path("k")
    path.parent.mkdir(parents=True)
    text = json.dumps({"kind": "header", "format": 1, "key": "k", "env": "Ant-v5"}) + "\n"
    path.write_text(text)
    (tmp_path / "tuned.report").mkdir()
    (tmp_path / "tuned.report" / RECORD).write_text(text)
    assert len(shown(tmp_path, with_tunes=True)) == 1


@pytest.mark.parametrize(
    "text", ["", "{", "[1]\n", '{"kind": "header", "format": 9}\n', "[" * 100_000 + "\n", "\x00\n",
             '{"kind": "header", "format": 1, "config": {"search": {"ranges": 3}}}\n'],
)  # fmt: skip
def test_a_record_that_is_damaged_is_told(tmp_path, text):
    path = write_search(tmp_path)
    (path / RECORD).write_text(text)
    (one,) = shown(tmp_path)
    assert one["kind"] == "damaged"
    assert one["texts"]


@pytest.mark.parametrize(
    "line", [{"kind": "ended"}, {"kind": "asked", "trial": "../.."}, {"kind": []}]
)
def test_lines_that_no_search_writes_are_told(tmp_path, line):
    write_search(tmp_path, line)
    assert shown(tmp_path)[0]["kind"] == "damaged"


def test_where_the_record_of_a_search_is_damaged_is_told(tmp_path):
    path = write_search(tmp_path, ended(0, 10.0))
    with open(path / RECORD, "a") as record:
        record.write("{{{\n" + json.dumps(ended(1, 30.0)) + "\n")
    (search,) = shown(tmp_path)
    assert search["texts"][0] == "1 runs ended, 0 failed in 0:05; best so far: trial 0."
    assert f"{RECORD} is damaged in line 3" in search["texts"][1]


def test_a_record_that_is_a_link_to_elsewhere_is_not_read(tmp_path):
    path = write_search(tmp_path / "outside", ended(0, 10.0))
    (tmp_path / "runs" / "name").mkdir(parents=True)
    os.symlink(path / RECORD, tmp_path / "runs" / "name" / RECORD)
    os.symlink(path, tmp_path / "runs" / "search")
    (one,) = shown(tmp_path / "runs")
    assert one["kind"] == "damaged"
    assert "leads out" in one["texts"][0]


def test_records_are_looked_for_in_few_folders(tmp_path):
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / RECORD).write_text("")
    assert find_records([tmp_path]) == []
    assert find_records([tmp_path / "a"]) == [deep]
