"""Records of tuning: what is added is there after any death, and what is no record is put aside."""

import errno
import json
import math
import os
import pwd
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest

from gmi_drl.runtime.cache_files import cache_folder, locked
from gmi_drl.selector.errors import RecordError
from gmi_drl.selector.record import record as records
from gmi_drl.selector.record.journal import append
from gmi_drl.selector.record.record import TuneJournal, expire, read, record_path
from gmi_drl.selector.tune.candidate import (
    Ask,
    Candidate,
    Chosen,
    DeviceSplit,
    Failed,
    Measured,
    Skipped,
)

ROW = DeviceSplit(2, "mps", 2.0, (67, 33))
SMALL, LARGE = (Candidate(ROW, num_env, 16, 32 * num_env) for num_env in (64, 128))
ANSWER = Measured(1e4, 0.01, 9, 1.5, {"train": 0.4, "simulate": 0.6}, 1 << 30, None, 0.1, 1.9)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return record_path("ab12")


def filled(path):
    record, notes = TuneJournal.open(path, {"env": "Ant-v5"}, anew=False)
    assert not notes
    record.profiled(Ask(SMALL, 2.0), ANSWER, 6.5)
    record.profiled(Ask(LARGE, 2.0), Failed("memory", "it was killed"), 3.0)
    return record


def test_what_is_added_is_read_back(path):
    record = filled(path)
    record.raced(SMALL, {"round": 1, "cost_s": 4.0, "points": [[1.0, 20.0]]})
    chosen = Chosen(SMALL, None, (Skipped(LARGE, "memory would be 132 % full"),), False)
    record.chose(chosen, {"steps_per_s": 1e4})
    found = read(path)
    assert found == record.record
    assert found.profiles == (
        (Ask(SMALL, 2.0), ANSWER),
        (Ask(LARGE, 2.0), Failed("memory", "it was killed")),
    )
    assert found.spent_s == 13.5
    assert (found.chosen, found.promised, found.fresh) == (chosen, 1e4, True)
    assert found.races[0]["candidate"] == SMALL
    assert [one.path for one in records.records()] == [path]


def test_an_estimate_without_bounds_is_kept_too(path):
    record = filled(path)
    unsure = Measured(**{**vars(ANSWER), "error": math.inf})
    record.profiled(Ask(SMALL, 2.0), unsure, 6.5)
    assert read(path).profiles[-1][1] == unsure


def test_a_drift_makes_it_stale_and_a_new_choice_fresh(path):
    record = filled(path)
    record.chose(Chosen(SMALL, None, (), True), {"steps_per_s": 1e4})
    assert expire(path, 6e3, "a run did 6,000 steps/s") == ""
    assert not read(path).fresh
    assert read(path).drifts[0]["text"] == "a run did 6,000 steps/s"
    record.chose(Chosen(LARGE, None, (), True), {"steps_per_s": 6e3})
    assert read(path).fresh


def test_a_torn_last_line_is_dropped_and_the_record_gone_on_with(path):
    filled(path)
    whole = path.read_bytes()
    for cut in range(len(whole) - 60, len(whole)):
        path.write_bytes(whole[:cut])
        record, notes = TuneJournal.open(path, {}, anew=False)
        assert not notes
        assert len(record.record.profiles) == 1
    record.profiled(Ask(LARGE, 2.0), ANSWER, 1.0)
    assert [ask.candidate for ask, _ in read(path).profiles] == [SMALL, LARGE]


def test_a_torn_last_line_goes_when_a_drift_is_noted(path):
    record = filled(path)
    record.chose(Chosen(SMALL, None, (), True), {"steps_per_s": 1e4})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "prof')
    assert read(path).fresh
    assert expire(path, 6e3, "a run did 6,000 steps/s") == ""
    assert path.read_bytes().startswith(whole)
    assert len(read(path).drifts) == 1
    assert len(read(path).profiles) == 2


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda lines: ["\0\0\0", *lines[1:]], "is damaged: it has no header"),
        (lambda lines: [], "is damaged: it has no header"),
        (lambda lines: [lines[0], "{}", *lines[1:]], "is damaged in line 2"),
        (lambda lines: [lines[0], lines[1].replace("1.9", '"x"'), *lines[2:]], "in line 2"),
        (lambda lines: [lines[0].replace('"format": 1', '"format": 7')], "has format 7"),
    ],
)
def test_what_is_no_record_is_put_aside(path, spoil, why):
    filled(path)
    path.write_text("\n".join([*spoil(path.read_text().splitlines()), ""]))
    before = path.read_bytes()
    with pytest.raises(RecordError, match=why):
        read(path)
    record, notes = TuneJournal.open(path, {"env": "Ant-v5"}, anew=False)
    assert why in notes[0]
    assert not record.record.profiles
    assert path.with_suffix(".damaged").read_bytes() == before
    assert read(path).header["env"] == "Ant-v5"


@pytest.mark.parametrize(
    "prediction", [{"own_samples": 8, "own_horizon": 4, "usual_noise": 2.0}, {"own_samples": 8}]
)
def test_a_choice_by_another_versions_prediction_is_no_record(path, prediction):
    record = filled(path)
    line = {**asdict(Chosen(SMALL, None, (), True)), "steps_per_s": 1e4, "prediction": prediction}
    append(path, {"kind": "chosen", "at": 0.0, **line})
    with pytest.raises(RecordError, match=r"is damaged in line 4 \(TypeError"):
        read(path)
    assert [*records.records()] == []
    record, (note,) = TuneJournal.open(path, {}, anew=False)
    assert "it is put aside, and tuning begins anew" in note
    assert record.record.chosen is None


def test_failures_alone_are_not_gone_on_with_and_anew_is_anew(path):
    record, _ = TuneJournal.open(path, {}, anew=False)
    record.profiled(Ask(SMALL, 2.0), Failed("crash", "it raised"), 1.0)
    assert not TuneJournal.open(path, {}, anew=False)[0].record.profiles
    filled(path)
    assert not TuneJournal.open(path, {}, anew=True)[0].record.profiles


def test_a_cache_that_cannot_be_written_keeps_nothing_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    record, notes = TuneJournal.open(tmp_path / "file" / "r.jsonl", {}, anew=False)
    assert "cannot be written" in notes[-1]
    record.profiled(Ask(SMALL, 2.0), ANSWER, 6.5)
    assert record.record.profiles == ((Ask(SMALL, 2.0), ANSWER),)


def test_a_disk_that_fills_leaves_a_record_that_can_be_read(path, monkeypatch):
    record = filled(path)

    def full(file, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        record.profiled(Ask(SMALL, 4.0), ANSWER, 1.0)
    assert "No space left on device" in record.trouble
    assert len(read(path).profiles) == 2
    assert len(record.record.profiles) == 3


def test_only_so_many_records_are_kept(path, monkeypatch):
    monkeypatch.setattr(records, "_MAX_RECORDS", 3)
    for number in range(5):
        one = path.with_name(f"{number}.jsonl")
        TuneJournal.open(one, {}, anew=False)
        one.with_suffix(".layout.yaml").write_text("")
        os.utime(one, (number, number))
    kept = sorted(p.name for p in path.parent.iterdir())
    assert kept == [f"{n}.{kind}" for n in (2, 3, 4) for kind in ("jsonl", "layout.yaml")]


HOLD = """
import sys
from datetime import timedelta
from pathlib import Path
from gmi_drl.runtime.cache_files import locked
with locked(Path(sys.argv[1]), timedelta(0), "process 7 (gmi-drl tune a.yaml)") as lock:
    print(lock.held, flush=True)
    sys.stdin.read()
"""


def test_a_lock_names_its_holder_and_is_free_when_that_is_killed(tmp_path):
    lock = tmp_path / "machine.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"True\n"
        with locked(lock, timedelta(0)) as second:
            assert (second.held, second.holder) == (False, "process 7 (gmi-drl tune a.yaml)")

        def waits(name):
            assert name == "process 7 (gmi-drl tune a.yaml)"
            holder.kill()

        with locked(lock, timedelta(seconds=20), "me", waits) as second:
            assert second.held


def test_no_lock_can_be_had_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with locked(tmp_path / "file" / "machine.lock", timedelta(0)) as lock:
        assert not lock.held
        assert not lock.holder


def test_without_a_home_things_are_kept_among_temporary_files(monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert cache_folder() == Path(tempfile.gettempdir(), f"gmi-drl-{os.getuid()}")
    assert list(records.records()) is not None


def test_lines_are_json_for_other_programs(path):
    filled(path)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["header", "profile", "profile"]
