"""A run that does other than tuning has promised: it says so once, and the record is stale."""

import pytest

from gmi_drl.promise_watch import PromiseWatch
from gmi_drl.selector.candidate import Candidate, Chosen, Row
from gmi_drl.selector.record import Record, read, record_path


class Screen:
    """Keeps what it is shown."""

    def __init__(self):
        self.shown = []

    def show(self, record):
        self.shown.append(record)


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = record_path("ab12")
    made, notes = Record.open(path, {}, anew=False)
    assert not notes
    made.chose(Chosen(Candidate(Row(1, "cpu"), 64, 16, 1024), None, (), True), {"steps_per_s": 1e3})
    return path


def trains(watch, steps_per_s, iterations=60):
    for n in range(iterations):
        watch.show({"kind": "iteration", "steps": n * steps_per_s, "time_s": float(n)})


def test_a_run_that_keeps_the_promise_says_nothing(record):
    screen = Screen()
    trains(PromiseWatch(1000.0, record, screen), 1100)
    assert screen.shown == []
    assert read(record).fresh


def test_a_run_that_does_not_warns_once_and_makes_the_record_stale(record):
    screen = Screen()
    trains(PromiseWatch(1000.0, record, screen), 600)
    (warning,) = screen.shown
    assert warning["kind"] == "warning"
    assert warning["message"] == (
        "600 steps/s, 40% less than the 1,000 that tuning measured. Its record is stale from now "
        "on: run gmi-drl tune again."
    )
    found = read(record)
    assert not found.fresh
    assert [drift["steps_per_s"] for drift in found.drifts] == [600]


def test_a_record_that_has_gone_meanwhile_ends_no_run(record):
    record.unlink()
    screen = Screen()
    trains(PromiseWatch(1000.0, record, screen), 600)
    (warning,) = screen.shown
    assert "cannot be written" in warning["message"]


def test_what_is_no_iteration_says_nothing_of_speed(record):
    screen = Screen()
    watch = PromiseWatch(1000.0, record, screen)
    for strange in ({}, {"kind": "iteration"}, {"kind": "iteration", "steps": "a", "time_s": None}):
        watch.show(strange)
    trains(watch, 1000)
    assert screen.shown == []
